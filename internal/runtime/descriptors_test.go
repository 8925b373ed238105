package runtime

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// leave lets the monitor open so many descriptors beside those that it has, until the end of the test.
func (g *rig) leave(room int) (undo func()) {
	g.Helper()
	pid := g.monitor()
	used := map[string]bool{}
	for _, e := range g.must(os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")).([]os.DirEntry) {
		used[e.Name()] = true
	}
	most := 0
	for ; room > 0 || len(used) > 0; most++ {
		if name := strconv.Itoa(most); used[name] {
			delete(used, name)
		} else {
			room--
		}
		if room < 0 {
			break
		}
	}
	var was unix.Rlimit
	g.ok(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was))
	g.ok(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(most), Max: was.Max}, nil))
	return func() { g.ok(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil)) }
}

// TestMonitorWithoutDescriptors has a monitor be given descriptors for which it has no room: it says so, and does not
// go on with those that came.
func TestMonitorWithoutDescriptors(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	for room := range 3 {
		undo := g.leave(room)
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		err := g.Attach(ctx, g.pod, ctr, Attach{Stdout: io.Discard})
		cancel()
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("with room for %d of 3 an attachment ends with %v", room, err)
		}
		out := &syncBuffer{}
		res, err := g.Exec(t.Context(), g.pod, ctr, Exec{Process: shellProcess("echo hi"), Stdout: out})
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("with room for %d of 3 an exec ends with %+v, %q, %v", room, res, out, err)
		}
		undo()
	}
	if out, code := g.exec(ctr, "echo hi"); out != "hi\n" || code != 0 {
		t.Errorf("with room again: code %d, %q", code, out)
	}
}
