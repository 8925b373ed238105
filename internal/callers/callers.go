// Package callers bounds what the clients of the daemon's socket hold of it: connections, calls under way, and
// answers that they do not read.
//
// Clients are told apart by their process. One may have as much of a thing as is free besides, so half of it while it
// is alone: beside a client that opens connections without end, or is stopped in the middle of everything, there is
// room for the next one, such as a kubelet that is just started.
package callers

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"berth/internal/fail"
	"berth/internal/limit"
)

// Limits are how many of each kind there may be. 0 is no limit.
type Limits struct {
	Connections, Calls, Execs, Pulls int64
}

// Callers knows what each client holds. New makes it.
type Callers struct {
	Log *slog.Logger // of refusals, which are logged nowhere else

	connections, calls, execs, pulls, watchers, sessions, answers *share
	warnings                                                      limit.Quiet
	self                                                          int32 // the process that is never refused
}

// New returns the callers of a server that has none yet. The fields are set before it serves.
func New(l Limits) *Callers {
	return &Callers{
		Log: slog.New(slog.DiscardHandler), self: int32(os.Getpid()), warnings: limit.Quiet{Every: time.Minute},
		connections: newShare(limit.Connections.At(l.Connections)), calls: newShare(limit.Calls.At(l.Calls)),
		execs: newShare(limit.Execs.At(l.Execs)), pulls: newShare(limit.Pulls.At(l.Pulls)),
		watchers: newShare(limit.Watchers), sessions: newShare(limit.CallSessions), answers: newShare(limit.Answers),
	}
}

// What a client may take its time for.
const (
	handshake   = 10 * time.Second // from connecting to the first word of HTTP/2
	pingAfter   = 5 * time.Minute  // without a word from a client it is asked for one
	pingTimeout = time.Minute      // and is gone when none comes: a stopped process frees what it holds
)

// streamsOfConnection is how many calls go over one connection at once. A client of gRPC has what is more wait.
const streamsOfConnection = 4096

// headersOfCall is how many bytes the headers of a call may have: a kubelet's have some hundred.
const headersOfCall = 64 << 10

// Options are those of a server whose listener is one of Listener's. Their interceptor comes before all others.
func (c *Callers) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.InTapHandle(c.enter), grpc.ForceServerCodecV2(countingCodec{}), grpc.ChainUnaryInterceptor(c.answer),
		grpc.MaxConcurrentStreams(streamsOfConnection), grpc.MaxHeaderListSize(headersOfCall),
		grpc.ConnectionTimeout(handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
	}
}

func (c *Callers) shares() []*share {
	return []*share{c.connections, c.calls, c.execs, c.pulls, c.watchers, c.sessions, c.answers}
}

// Budgets are the limits with what is used of them.
func (c *Callers) Budgets() (all []limit.Budget) {
	for _, s := range c.shares() {
		all = append(all, s.inUse())
	}
	return all
}

// Refusals are how many calls and connections were refused, by the name of the limit.
func (c *Callers) Refusals() map[string]int {
	all := map[string]int{}
	for _, s := range c.shares() {
		name, n := s.refusals()
		all[name] = n
	}
	return all
}

// enter lets a call in, before anything of its request is read, and counts it until it ends.
func (c *Callers) enter(ctx context.Context, call *tap.Info) (context.Context, error) {
	who := from(ctx)
	if who.ours {
		return ctx, nil
	}
	var held []*share
	for _, s := range []*share{c.calls, c.kind(call.FullMethodName)} {
		if s == nil {
			continue
		}
		if err := s.take(who.PID, 1); err != nil {
			free(held, who.PID)
			return ctx, c.refuse(call.FullMethodName, err)
		}
		held = append(held, s)
	}
	context.AfterFunc(ctx, func() { free(held, who.PID) })
	return ctx, nil
}

func free(held []*share, pid int32) {
	for _, s := range held {
		s.give(pid, 1)
	}
}

// kind is the share of calls like this one; nil for those that are soon over.
func (c *Callers) kind(method string) *share {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	switch {
	case name == "ExecSync":
		return c.execs
	case name == "PullImage", name == "Pull", name == "Import":
		return c.pulls
	case name == "GetContainerEvents":
		return c.watchers
	case !strings.HasPrefix(service, "runtime.") && (name == "Exec" || name == "Attach" || name == "PortForward"):
		return c.sessions
	}
	return nil
}

// refuse makes a status of err, and tells of it, but not of each: there may be thousands a second.
func (c *Callers) refuse(method string, err error) error {
	if n, tell := c.warnings.Tell(time.Now()); tell {
		c.Log.Warn("calls are refused: a client holds too much", "method", fail.Clip(method), "error", err, "count", n)
	}
	return fail.Status(err)
}

// answer keeps an answer to its client from being one too many of those that it does not read.
func (c *Callers) answer(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (any, error) {
	resp, err := next(ctx, req)
	if err != nil {
		return nil, err
	}
	who := from(ctx)
	if who.ours {
		return resp, nil
	}
	counted, err := count(c.answers, who, resp)
	if err != nil {
		return nil, c.refuse(info.FullMethod, err)
	}
	return counted, nil
}

// from says whose call it is; a connection that is not one of Listener's has no known client.
func from(ctx context.Context) Address {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(Address); ok {
			return a
		}
	}
	return Address{}
}

// Root reports whether a call is one of root's.
func Root(ctx context.Context) bool {
	a := from(ctx)
	return a.known && a.UID == 0
}
