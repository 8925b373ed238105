package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/admin"
	"berth/internal/callers"
	"berth/internal/fail"
	"berth/internal/limit"
	"berth/internal/pod"
)

// debugger tells what the daemon does at the moment, to root alone. It reads what can be read without a lock of an
// operation, and has no state of its own but the seats.
type debugger struct {
	node  *node
	seats chan struct{} // how many may be told at once: a client that does not read holds one
}

// debugSeats bounds the memory that clients which do not read can hold.
var debugSeats = limit.DebugClients.Limit

func newDebugger(n *node) debugger { return debugger{n, make(chan struct{}, debugSeats)} }

// Debug writes a part of what admin.DebugParts lists.
func (d debugger) Debug(ctx context.Context, part string, w io.Writer) error {
	if err := onlyRoot(ctx); err != nil {
		return err
	}
	select {
	case d.seats <- struct{}{}:
		defer func() { <-d.seats }()
	default:
		return limit.DebugClients.Check(debugSeats + 1)
	}
	switch part {
	case admin.DebugVersion:
		return writeJSON(w, d.version())
	case admin.DebugGoroutines:
		return writeGoroutines(w)
	case admin.DebugStacks:
		return pprof.Lookup("goroutine").WriteTo(w, 1)
	case admin.DebugHeap:
		return pprof.Lookup("heap").WriteTo(w, 0)
	case admin.DebugMemory:
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return writeJSON(w, map[string]any{
			"heapInUse": m.HeapInuse, "heapIdle": m.HeapIdle, "heapReleased": m.HeapReleased,
			"stacks": m.StackInuse, "sys": m.Sys,
			"objects": m.HeapObjects, "collections": m.NumGC, "nextCollection": m.NextGC, "limit": debug.SetMemoryLimit(-1),
			"goroutines": runtime.NumGoroutine(),
		})
	case admin.DebugStart:
		return writeJSON(w, d.node.timeline.Steps())
	case admin.DebugConfig:
		_, err := io.WriteString(w, withoutSecrets(d.node.settings.config.Load().TOML()))
		return err
	}
	if !d.node.opened.Load() {
		return fail.New(errdefs.ErrUnavailable, "the daemon is starting: it cannot tell this yet")
	}
	switch part {
	case admin.DebugSituations:
		for _, s := range pod.Situations(d.node.pods) {
			s.Failed = withoutSecrets(s.Failed)
			if err := writeJSON(w, admin.Situation(s)); err != nil {
				return err
			}
		}
		return nil
	case admin.DebugHost:
		return writeJSON(w, d.node.facts)
	case admin.DebugProblems:
		return writeJSON(w, d.helpersStuck())
	case admin.DebugLimits:
		return writeJSON(w, limitsOf(d.node))
	}
	return fail.New(errdefs.ErrInvalidArgument, "%q is no part of what the daemon tells", part)
}

func (d debugger) version() map[string]any {
	return map[string]any{
		"berth": version, "go": runtime.Version(), "arch": runtime.GOARCH, "now": time.Now(), "opened": d.node.opened.Load(),
	}
}

// helpersStuck are the helpers that cannot be killed; what hangs of pods is in their situations.
func (d debugger) helpersStuck() []admin.Problem {
	all := []admin.Problem{}
	for _, s := range d.node.groups.helpers.Stuck() {
		all = append(all, admin.Problem{Step: s.Name, Message: withoutSecrets(s.StuckError.Error()), Since: s.Since})
	}
	return all
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// stacksMax is how much memory the stacks of all goroutines may take; those of a daemon with more are in
// admin.DebugStacks.
const stacksMax = 4 << 20

// arguments are those of a call in a stack. They are words of memory, mostly pointers; a value among them may be a
// secret.
var arguments = regexp.MustCompile(`(?m)^([^\t\n].*)\((?:0x|_|\{|\.\.\.)[^\n]*\)$`)

// writeGoroutines writes the stacks without the arguments of calls.
func writeGoroutines(w io.Writer) error {
	buf := make([]byte, 256<<10)
	for {
		if n := runtime.Stack(buf, true); n < len(buf) || len(buf) >= stacksMax {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	for len(buf) > 0 { // piece by piece, so that it takes no second buffer
		end := min(len(buf), 64<<10)
		if i := bytes.IndexByte(buf[end:], '\n'); i >= 0 {
			end += i + 1
		} else {
			end = len(buf)
		}
		if _, err := w.Write(arguments.ReplaceAll(buf[:end], []byte("$1(...)"))); err != nil {
			return err
		}
		buf = buf[end:]
	}
	return nil
}

// Texts that carry credentials whoever wrote them: in an URL, after a header's name, behind a word that says so.
var (
	userinfo = regexp.MustCompile(`(://)[^/\s@"']+@`)
	query    = regexp.MustCompile(`(://[^\s?"']+\?)[^\s"']+`)
	bearer   = regexp.MustCompile(`(?i)\b(basic|bearer)\s+[A-Za-z0-9+/=._~-]+`)
	named    = regexp.MustCompile(`(?i)([a-z0-9_-]*` +
		`(?:authorization|token|passw(?:or)?d|secret|credential|api[_-]?key|private[_-]?key)` +
		`[a-z0-9_-]*["']?\s*[:=]\s*)(?:"[^"\n]*"|'[^'\n]*'|[^\s,;"']+)`)
)

// withoutSecrets takes credentials out of a text by their form.
func withoutSecrets(text string) string {
	text = userinfo.ReplaceAllString(text, "${1}[hidden]@")
	text = query.ReplaceAllString(text, "${1}[hidden]")
	text = bearer.ReplaceAllString(text, "$1 [hidden]")
	return named.ReplaceAllString(text, "$1[hidden]")
}

// onlyRoot refuses callers other than root, also where the socket was opened to more.
func onlyRoot(ctx context.Context) error {
	if callers.Root(ctx) {
		return nil
	}
	return fail.New(errdefs.ErrPermissionDenied, "only root may see what the daemon does: run this as root")
}
