package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/fail"
	"berth/internal/limit"
)

// Interceptors are what every call passes, and the only place where calls are logged.
//
// Until ready says so a call is answered Unavailable. A call that went well is logged at info, a read at debug unless
// it took long; one that failed at warn, or at error when the daemon itself is at fault. A panic becomes Internal: it
// takes its call down and leaves the others, with its stack in the log.
//
// Calls of the methods that begin with one of always are let through before ready says so: they ask why it does not.
//
// An error becomes a status here, as package fail has it. Each call is noted in metrics, which may be nil.
func Interceptors(
	log *slog.Logger, ready func() bool, metrics *Metrics, always ...string,
) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	g := gate{log: log, ready: ready, metrics: metrics, always: always, refusals: &refusals{of: map[string]*limit.Quiet{}}}
	unary := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any,
		err error) {
		err = g.pass(ctx, info.FullMethod, func() []slog.Attr { return append(about(req), made(resp)...) }, func() error {
			resp, err = handler(ctx, req)
			return err
		})
		if err != nil {
			resp = nil
		}
		return resp, err
	}
	stream := func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		s := &firstMessage{ServerStream: ss}
		return g.pass(ss.Context(), info.FullMethod, func() []slog.Attr {
			return about(s.first)
		}, func() error { return handler(srv, s) })
	}
	return unary, stream
}

// firstMessage remembers the request of a server stream, for the log.
type firstMessage struct {
	grpc.ServerStream
	first any
}

func (s *firstMessage) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil && s.first == nil {
		s.first = m
	}
	return err
}

type gate struct {
	log     *slog.Logger
	ready   func() bool
	metrics *Metrics
	always  []string

	refusals *refusals
}

// pass runs one call. What it is about is asked for after it, when a stream has received its request and a call is
// answered.
func (g gate) pass(ctx context.Context, method string, subject func() []slog.Attr, call func() error) error {
	named := func(prefix string) bool { return strings.HasPrefix(method, prefix) }
	if !g.ready() && !slices.ContainsFunc(g.always, named) {
		return status.Error(codes.Unavailable, "berth is starting and not ready yet: ask again in a moment")
	}
	begin := time.Now()
	cause := g.guard(method, call)
	err := fail.Status(cause)
	code, took := status.Code(err), time.Since(begin)
	g.metrics.Call(method, code, took)
	g.metrics.Failure(method, cause)
	count, tell := 1, true
	if code == codes.ResourceExhausted && fail.Details(cause).Limit != "" {
		count, tell = g.refusals.tell(method, begin)
	}
	if level := levelOf(method, code, took); tell && g.log.Enabled(ctx, level) {
		attrs := []slog.Attr{
			slog.String("method", method[strings.LastIndexByte(method, '/')+1:]),
			slog.String("code", code.String()),
			slog.Duration("took", took),
		}
		attrs = append(attrs, subject()...)
		if count > 1 {
			attrs = append(attrs, slog.Int("count", count))
		}
		if err != nil {
			attrs = append(attrs, reasons(cause)...)
			attrs = append(attrs, slog.String("error", status.Convert(err).Message()))
		}
		g.log.LogAttrs(ctx, level, "call", attrs...)
	}
	return err
}

// refusals tell of one call a second, for each method, of those that a limit refuses.
type refusals struct {
	mu sync.Mutex // guards of
	of map[string]*limit.Quiet
}

// tell reports whether to tell of a call of the method, and how many there were since the last that was told, with it.
func (r *refusals) tell(method string, now time.Time) (n int, tell bool) {
	r.mu.Lock()
	quiet := r.of[method]
	if quiet == nil {
		quiet = &limit.Quiet{Every: time.Second}
		r.of[method] = quiet
	}
	r.mu.Unlock()
	return quiet.Tell(now)
}

// reasons tells of an error what its code does not say.
func reasons(err error) (attrs []slog.Attr) {
	if kind := fail.KindOf(err); kind.Name != kind.Code.String() {
		attrs = append(attrs, slog.String("kind", kind.Name))
	}
	about := fail.Details(err)
	for _, a := range []struct{ name, value string }{{"step", about.Step}, {"limit", about.Limit}, {"key", about.Key}} {
		if a.value != "" {
			attrs = append(attrs, slog.String(a.name, a.value))
		}
	}
	return attrs
}

// guard turns a panic into an error.
func (g gate) guard(method string, call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			g.log.Error("a call panicked: this is a bug in berth", "method", method, "panic", fmt.Sprint(p), "stack",
				string(debug.Stack()))
			err = status.Errorf(codes.Internal, "%s: berth has a bug here, its log has the stack: %v", method, p)
		}
	}()
	return call()
}

// slow is what a read may take before it is worth a line: reads come from memory, and a kubelet stands still meanwhile.
const slow = time.Second

// levelOf says how loud a call is. What a caller did to itself (it gave up) is not a fault of the daemon.
func levelOf(method string, code codes.Code, took time.Duration) slog.Level {
	switch {
	case code == codes.Internal, code == codes.DataLoss, code == codes.Unknown:
		return slog.LevelError
	case isRead(method) && (code == codes.OK || code == codes.NotFound): // kubelets ask about what they have just removed
		if took > slow && !isWatch(method) {
			return slog.LevelInfo
		}
		return slog.LevelDebug
	case code == codes.OK:
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// isWatch reports whether a method goes on until its caller has enough.
func isWatch(method string) bool { return strings.HasSuffix(method, "/GetContainerEvents") }

// isRead reports whether a method changes nothing. Kubelets call these many times a second.
func isRead(method string) bool {
	name := method[strings.LastIndexByte(method, '/')+1:]
	switch name {
	case "Version", "RuntimeConfig", "ImageFsInfo", "GetContainerEvents":
		return true
	}
	for _, prefix := range []string{"List", "Stream"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return strings.HasSuffix(name, "Status") || strings.HasSuffix(name, "Stats")
}
