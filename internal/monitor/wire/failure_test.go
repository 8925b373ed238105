package wire

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

// TestFailures shows what of an error reaches the daemon: its text, and what the kernel said where the node lacks
// something.
func TestFailures(t *testing.T) {
	full := &fs.PathError{Op: "open log", Path: "/logs/a", Err: syscall.ENOSPC}
	for name, c := range map[string]struct {
		err   error
		errno syscall.Errno
		path  string
	}{
		"of a file":     {fmt.Errorf("start: %w", full), syscall.ENOSPC, "/logs/a"},
		"of no file":    {fmt.Errorf("run crun: %w", syscall.EAGAIN), syscall.EAGAIN, ""},
		"not of a lack": {&fs.PathError{Op: "open", Path: "/none", Err: syscall.ENOENT}, 0, ""},
		"in words":      {errors.New("no"), 0, ""},
	} {
		var r Reply
		r.Fail(c.err)
		back := r.Failure()
		if back.Error() != c.err.Error() || syscall.Errno(r.Errno) != c.errno || r.Path != c.path {
			t.Errorf("%s: %+v, which is %v", name, r, back)
		}
		var errno syscall.Errno
		if errors.As(back, &errno); errno != c.errno {
			t.Errorf("%s: the kernel said %d", name, errno)
		}
	}
	var r Reply
	r.Fail(nil)
	if r.Error != "" || r.Failure() != nil {
		t.Errorf("no error is %+v", r)
	}
	// What comes from a process is not believed beyond that.
	if r = (Reply{Error: "x", Errno: int(syscall.ENOENT)}); errors.Is(r.Failure(), fs.ErrNotExist) {
		t.Error("an errno that says no lack is passed on")
	}
}
