package admin

import (
	"bufio"
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
)

// Register makes the service known to g.
func Register(g *grpc.Server, s Server) { g.RegisterService(&service, s) }

var service = grpc.ServiceDesc{
	ServiceName: ServiceName,
	HandlerType: (*Server)(nil),
	Methods: []grpc.MethodDesc{
		{MethodName: "Info", Handler: unary("Info", func(s Server, ctx context.Context, _ *none) (any, error) {
			return s.Info(ctx)
		})},
		{MethodName: "Reload", Handler: unary("Reload", func(s Server, ctx context.Context, _ *none) (any, error) {
			return s.Reload(ctx)
		})},
		{MethodName: "Signal", Handler: unary("Signal", func(s Server, ctx context.Context, r *SignalRequest) (any, error) {
			return &none{}, s.Signal(ctx, r)
		})},
		{MethodName: "Tag", Handler: unary("Tag", func(s Server, ctx context.Context, r *TagRequest) (any, error) {
			return &none{}, s.Tag(ctx, r)
		})},
		{MethodName: "Sweep", Handler: unary("Sweep", func(s Server, ctx context.Context, _ *none) (any, error) {
			return &none{}, s.Sweep(ctx)
		})},
	},
	Streams: []grpc.StreamDesc{
		{StreamName: "Pull", Handler: servePull, ServerStreams: true},
		{StreamName: "Pulls", Handler: servePulls, ServerStreams: true},
		{StreamName: "Import", Handler: serveImport, ServerStreams: true, ClientStreams: true},
		{StreamName: "Export", Handler: serveExport, ServerStreams: true},
		{StreamName: "Images", Handler: serveImages, ServerStreams: true},
		{StreamName: "Attach", Handler: serveAttach, ServerStreams: true, ClientStreams: true},
		{StreamName: "Exec", Handler: serveExec, ServerStreams: true, ClientStreams: true},
		{StreamName: "PortForward", Handler: servePortForward, ServerStreams: true, ClientStreams: true},
		{StreamName: "Check", Handler: serveCheck, ServerStreams: true},
	},
}

// method is the full name of an RPC.
func method(name string) string { return "/" + ServiceName + "/" + name }

// unary serves a method with one request and one answer.
func unary[Q any](name string, do func(Server, context.Context, *Q) (any, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		req := new(Q)
		if err := decode(req); err != nil {
			return nil, err
		}
		call := func(ctx context.Context, q any) (any, error) { return do(srv.(Server), ctx, q.(*Q)) }
		if intercept == nil {
			return call(ctx, req)
		}
		return intercept(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: method(name)}, call)
	}
}

func servePull(srv any, stream grpc.ServerStream) error {
	req, err := receive[PullRequest](stream)
	if err != nil {
		return err
	}
	return srv.(Server).Pull(stream.Context(), req, sender[PullEvent](stream))
}

func servePulls(srv any, stream grpc.ServerStream) error {
	if _, err := receive[none](stream); err != nil {
		return err
	}
	return srv.(Server).Pulls(stream.Context(), sender[Underway](stream))
}

func serveImport(srv any, stream grpc.ServerStream) error {
	return srv.(Server).Import(stream.Context(), &chunkReader{stream: stream}, sender[PullEvent](stream))
}

func serveExport(srv any, stream grpc.ServerStream) error {
	req, err := receive[ExportRequest](stream)
	if err != nil {
		return err
	}
	send := sender[exportEvent](stream)
	archive := bufio.NewWriterSize(chunkWriter(func(p []byte) error { return send(&exportEvent{Data: p}) }), chunkSize)
	tell := func(e *PullEvent) error { return send(&exportEvent{Step: e}) }
	if err := srv.(Server).Export(stream.Context(), req, archive, tell); err != nil {
		return err
	}
	return archive.Flush()
}

func serveImages(srv any, stream grpc.ServerStream) error {
	req, err := receive[ImagesRequest](stream)
	if err != nil {
		return err
	}
	return srv.(Server).Images(stream.Context(), req, sender[ImageDetail](stream))
}

func serveAttach(srv any, stream grpc.ServerStream) error {
	req, err := receive[AttachRequest](stream)
	if err != nil {
		return err
	}
	recv := func() (*AttachInput, error) { return receive[AttachInput](stream) }
	return srv.(Server).Attach(stream.Context(), req, recv, sender[AttachOutput](stream))
}

func serveExec(srv any, stream grpc.ServerStream) error {
	req, err := receive[ExecRequest](stream)
	if err != nil {
		return err
	}
	recv := func() (*AttachInput, error) { return receive[AttachInput](stream) }
	return srv.(Server).Exec(stream.Context(), req, recv, sender[AttachOutput](stream))
}

func servePortForward(srv any, stream grpc.ServerStream) error {
	req, err := receive[PortForwardRequest](stream)
	if err != nil {
		return err
	}
	recv := func() (*PortData, error) { return receive[PortData](stream) }
	return srv.(Server).PortForward(stream.Context(), req, recv, sender[PortData](stream))
}

func serveCheck(srv any, stream grpc.ServerStream) error {
	req, err := receive[CheckRequest](stream)
	if err != nil {
		return err
	}
	return srv.(Server).Check(stream.Context(), req, sender[Finding](stream))
}

// receiver is either end of a stream.
type receiver interface{ RecvMsg(m any) error }

func receive[T any](stream receiver) (*T, error) {
	m := new(T)
	if err := stream.RecvMsg(m); err != nil {
		return nil, err
	}
	return m, nil
}

// sender lets several goroutines send, which a stream by itself does not.
func sender[T any](stream interface{ SendMsg(m any) error }) func(*T) error {
	var mu sync.Mutex // held while sending
	return func(m *T) error {
		mu.Lock()
		defer mu.Unlock()
		return stream.SendMsg(m)
	}
}

// chunkReader reads the archive that a client sends.
type chunkReader struct {
	stream receiver
	rest   []byte
	err    error
}

func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 && r.err == nil {
		var c *chunk
		if c, r.err = receive[chunk](r.stream); r.err == nil {
			r.rest = c.Data
		}
	}
	if len(r.rest) == 0 {
		return 0, r.err
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

var _ io.Reader = (*chunkReader)(nil)

// chunkWriter sends what is written to it, in messages that gRPC takes.
type chunkWriter func(p []byte) error

func (w chunkWriter) Write(p []byte) (n int, err error) {
	for n < len(p) {
		piece := p[n:min(n+chunkSize, len(p))]
		if err := w(piece); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}
