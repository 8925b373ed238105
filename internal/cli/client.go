package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

// mostMessage is the largest answer taken, as the kubelet has it.
const mostMessage = 16 << 20

// client is a connection to the daemon.
type client struct {
	runtimeapi.RuntimeServiceClient
	images runtimeapi.ImageServiceClient
	node   *admin.Client
	conn   *grpc.ClientConn
}

func (c *client) close() { _ = c.conn.Close() }

// dial makes a client. It connects with the first call, whose error then says what is wrong with the socket.
func (a *app) dial() (*client, error) {
	path := socketPath(a.socket)
	if strings.Contains(path, "://") {
		return nil, fmt.Errorf("socket %s: want the path of a unix socket", a.socket)
	}
	conn, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostMessage)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}),
		grpc.WithUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
				opts ...grpc.CallOption) error {
				ctx, answered := listenFor(seeAll(ctx))
				err := invoke(ctx, method, req, reply, cc, opts...)
				return explain(path, answered.Load(), err)
			}),
		grpc.WithStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
				opts ...grpc.CallOption) (grpc.ClientStream, error) {
				ctx, answered := listenFor(seeAll(ctx))
				stream, err := open(ctx, desc, cc, method, opts...)
				if err != nil {
					return nil, explain(path, answered.Load(), err)
				}
				return explainingStream{stream, path, answered}, nil
			}), grpc.WithStatsHandler(ear{}))
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", a.socket, err)
	}
	return &client{runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn), admin.NewClient(conn),
		conn}, nil
}

// seeAll has lists hold the pods of berth run, too, which a kubelet is not shown.
func seeAll(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, admin.PodsKey, admin.AllPods)
}

// with dials, and calls do.
func (a *app) with(do func(*client) error) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.close()
	return do(c)
}

func socketPath(socket string) string { return strings.TrimPrefix(socket, "unix://") }

// callError is a failed call in words for a person; it keeps the code and the details of its status.
type callError struct{ status *status.Status }

func (e *callError) Error() string              { return e.status.Message() }
func (e *callError) GRPCStatus() *status.Status { return e.status }

// explain takes gRPC's own words out of an error, and says what to do when the daemon does not answer. What the daemon
// itself answered is told as it is: also one that lives says that something, such as a registry, is unavailable.
func explain(path string, answered bool, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	text := s.Message()
	switch {
	case s.Code() == codes.Unavailable && !answered:
		text = noAnswer(path, text)
	case s.Code() == codes.Unimplemented:
		text += "; is the daemon older than this command, or not Berth?"
	case s.Code() == codes.Canceled:
		text = "interrupted"
	}
	told := s.Proto()
	told.Message = text
	return &callError{status.FromProto(told)}
}

// noAnswer says why the daemon does not answer. What connecting says is plainer than what gRPC makes of it.
func noAnswer(path, text string) string {
	advice := `start it with "berth serve"`
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		advice = "it may be starting or stopping; try again"
	case errors.Is(err, fs.ErrPermission):
		text, advice = "permission denied", "run this as root"
	default:
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		text = err.Error()
	}
	return fmt.Sprintf("the daemon at %s does not answer: %s; %s", path, text, advice)
}

type explainingStream struct {
	grpc.ClientStream
	path     string
	answered *atomic.Bool
}

func (s explainingStream) RecvMsg(m any) error { return s.explain(s.ClientStream.RecvMsg(m)) }
func (s explainingStream) SendMsg(m any) error { return s.explain(s.ClientStream.SendMsg(m)) }

func (s explainingStream) explain(err error) error { return explain(s.path, s.answered.Load(), err) }

// ear hears the end of a call that came from the daemon, as opposed to one that gRPC made up when the connection went.
type ear struct{}

type earKey struct{}

// listenFor returns a context for one call, and whether the daemon ended it.
func listenFor(ctx context.Context) (context.Context, *atomic.Bool) {
	answered := new(atomic.Bool)
	return context.WithValue(ctx, earKey{}, answered), answered
}

func (ear) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (ear) HandleConn(context.Context, stats.ConnStats)                       {}
func (ear) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }

func (ear) HandleRPC(ctx context.Context, s stats.RPCStats) {
	answered, ok := ctx.Value(earKey{}).(*atomic.Bool)
	if _, last := s.(*stats.InTrailer); ok && last {
		answered.Store(true)
	}
}

func isCode(err error, code codes.Code) bool { return err != nil && status.Code(err) == code }
