package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
)

// DebugService is the gRPC name of the service that tells what the daemon does at the moment. It is a service of its
// own: it answers before the daemon is ready, and whatever limits other calls are at.
const DebugService = "berth.v1.Debug"

// The parts of what a daemon tells.
const (
	DebugVersion    = "version.json"        // versions of the daemon and of Go, when it started
	DebugGoroutines = "goroutines.txt"      // the stacks of the daemon's goroutines, without arguments
	DebugStacks     = "goroutines-sums.txt" // the same, those with the same stack counted
	DebugHeap       = "heap.pprof"          // who has allocated the memory in use
	DebugMemory     = "memory.json"         // sizes of the heap
	DebugSituations = "situations.jsonl"    // a Situation in each line, of every pod and container, those that wait first
	DebugConfig     = "config.toml"         // the configuration in force
	DebugHost       = "host.json"           // what was found out about the machine
	DebugStart      = "start.json"          // how long the parts of the daemon's start took
	DebugProblems   = "problems.json"       // what an administrator should look at
	DebugLimits     = "limits.json"         // limits that all share, with what is used of them
)

// DebugParts are all parts, in the order in which they are told: those that matter most first.
func DebugParts() []string {
	return []string{
		DebugVersion, DebugSituations, DebugStacks, DebugGoroutines, DebugMemory, DebugHeap, DebugProblems, DebugLimits,
		DebugStart, DebugHost, DebugConfig,
	}
}

// Situation is what a pod or a container does at the moment and what it waits for.
type Situation struct {
	Pod         string         `json:"pod"`
	Container   string         `json:"container,omitempty"`
	Name        string         `json:"name,omitempty"` // namespace/pod or namespace/pod/container
	State       string         `json:"state,omitempty"`
	Created     time.Time      `json:"created,omitzero"`
	Handler     string         `json:"handler,omitempty"`
	Image       string         `json:"image,omitempty"`
	Operation   string         `json:"operation,omitempty"` // what holds its lane
	Since       time.Time      `json:"since,omitzero"`
	Ended       bool           `json:"ended,omitempty"`   // it was told to end
	Callers     int            `json:"callers,omitempty"` // that wait for its end
	Queued      map[string]int `json:"queued,omitempty"`  // that wait for the lane, by the kind of operation
	Step        string         `json:"step,omitempty"`    // that runs, the oldest of them
	StepSince   time.Time      `json:"stepSince,omitzero"`
	Beside      []string       `json:"beside,omitempty"` // steps that run beside it
	Failed      string         `json:"failed,omitempty"` // the last try of an undo that is tried again
	FailedSince time.Time      `json:"failedSince,omitzero"`
	Tries       int            `json:"tries,omitempty"`
	Recovering  bool           `json:"recovering,omitempty"` // the daemon does not know yet what of it runs
	Writing     time.Time      `json:"writing,omitzero"`     // its record has been being written since
}

// Debugger is what the daemon provides. It takes no lock that an operation may hold.
type Debugger interface {
	// Debug writes one of the DebugParts to w. It may be called while others are, and at any time.
	Debug(ctx context.Context, part string, w io.Writer) error
}

// debugRequest asks for some of the DebugParts.
type debugRequest struct {
	Parts []string `json:"parts"`
}

// debugChunk is a piece of a part. Err is why there is no more of it; the next part follows.
type debugChunk struct {
	Part string `json:"part"`
	Data []byte `json:"data,omitempty"`
	Err  string `json:"err,omitempty"`
}

// debugMax is how much is told of one part; what is beyond it is cut off, with a word about that.
const debugMax = 8 << 20

// errCut ends a part that is too long.
var errCut = fmt.Errorf("cut off after %d MiB", debugMax>>20)

// RegisterDebug makes the service known to g.
func RegisterDebug(g *grpc.Server, d Debugger) { g.RegisterService(&debugService, d) }

var debugService = grpc.ServiceDesc{
	ServiceName: DebugService,
	HandlerType: (*Debugger)(nil),
	Streams:     []grpc.StreamDesc{{StreamName: "Debug", Handler: serveDebug, ServerStreams: true}},
}

func serveDebug(srv any, stream grpc.ServerStream) error {
	req, err := receive[debugRequest](stream)
	if err != nil {
		return err
	}
	for _, part := range req.Parts {
		w := &debugWriter{part: part, send: stream.SendMsg}
		err := srv.(Debugger).Debug(stream.Context(), part, w)
		if w.gone != nil {
			return w.gone
		}
		end := debugChunk{Part: part}
		if err != nil {
			end.Err = err.Error()
		}
		if err := stream.SendMsg(&end); err != nil {
			return err
		}
	}
	return nil
}

// debugWriter sends what is written to it, up to a limit.
type debugWriter struct {
	part string
	send func(any) error
	n    int
	gone error // why nothing can be sent
}

func (w *debugWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		piece := p[:min(len(p), chunkSize, debugMax-w.n)]
		if len(piece) == 0 {
			return n, errCut
		}
		if w.gone = w.send(&debugChunk{Part: w.part, Data: piece}); w.gone != nil {
			return n, w.gone
		}
		w.n, n, p = w.n+len(piece), n+len(piece), p[len(piece):]
	}
	return n, nil
}

// Debug asks the daemon at the other end of cc for parts of what it does at the moment. each is called with one piece
// after the other, at last with why the part ends early, or nil.
func Debug(
	ctx context.Context, cc grpc.ClientConnInterface, parts []string,
	each func(part string, data []byte, end bool, err error) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := cc.NewStream(ctx, &debugService.Streams[0], "/"+DebugService+"/Debug", grpc.CallContentSubtype(subtype))
	if err != nil {
		return err
	}
	// Of io.EOF the next receive tells the reason.
	if err := stream.SendMsg(&debugRequest{parts}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		c, err := receive[debugChunk](stream)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var why error
		if c.Err != "" {
			why = errors.New(c.Err)
		}
		if err := each(c.Part, c.Data, len(c.Data) == 0, why); err != nil {
			return err
		}
	}
}
