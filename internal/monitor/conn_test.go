package monitor

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTerminalOutlivesItsContainer has a container end between the question for its terminal and the answer: what is sent is the
// terminal still, and not what got its number since.
func TestTerminalOutlivesItsContainer(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var want, got unix.Stat_t
	if err := unix.Fstat(int(r.Fd()), &want); err != nil {
		t.Fatal(err)
	}
	c := &container{id: "a", console: w}
	fds, err := c.terminal()
	if err != nil || len(fds) != 1 {
		t.Fatalf("%v, %v", fds, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull) // gets the number
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := unix.Fstat(fds[0], &got); err != nil || got.Ino != want.Ino {
		t.Errorf("descriptor %d is inode %d, not %d: %v", fds[0], got.Ino, want.Ino, err)
	}
	closeList(fds)
	if _, err := c.terminal(); err == nil {
		t.Error("the terminal of a container that has ended was given")
	}
}
