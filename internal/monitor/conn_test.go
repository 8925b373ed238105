package monitor

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// TestTerminalOutlivesItsContainer has a container end between the question for its terminal and the answer: what is
// sent is the terminal still, and not what got its number since.
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

// TestShutdownIsAnswered asks a monitor to end while another answer is being sent: it does not end before its own has
// gone, which would be a lost connection to who asked.
func TestShutdownIsAnswered(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	m := &Monitor{containers: map[string]*container{}, done: make(chan struct{})}
	c := &conn{m: m, f: os.NewFile(uintptr(ends[1]), "daemon"), gone: make(chan struct{})}
	defer c.f.Close()
	c.mu.Lock()
	go c.handle(t.Context(), &wire.Request{ID: 1, Op: wire.Shutdown}, nil)
	select {
	case <-m.done:
		t.Error("it has ended before its answer was sent")
	case <-time.After(100 * time.Millisecond):
	}
	c.mu.Unlock()
	<-m.done
	var r wire.Reply
	buf := make([]byte, 1<<10)
	n, err := unix.Read(ends[0], buf)
	if err == nil {
		err = wire.Decode(buf[:n], &r)
	}
	if err != nil || r.ID != 1 || r.Error != "" {
		t.Errorf("the answer: %+v, %v", r, err)
	}
}

// TestAloneTime has the connections of execs be lost: one with a timeout has that, one without an hour, and a session
// ten seconds.
func TestAloneTime(t *testing.T) {
	for _, c := range []struct {
		r    wire.Request
		want time.Duration
	}{
		{wire.Request{Op: wire.Exec, Timeout: 1}, 0},
		{wire.Request{Op: wire.Exec}, time.Hour},
		{wire.Request{Op: wire.Session}, 10 * time.Second},
	} {
		grace := aloneTime(&c.r)
		if grace != c.want {
			t.Errorf("%+v may go on for %v, want %v", c.r, grace, c.want)
		}
		synctest.Test(t, func(t *testing.T) {
			began, conn := time.Now(), &conn{gone: make(chan struct{})}
			ctx, end := conn.clientLifetime(t.Context(), grace)
			defer end()
			time.Sleep(24 * time.Hour)
			if ctx.Err() != nil {
				t.Error("it is ended while its daemon lives")
			}
			close(conn.gone)
			<-ctx.Done()
			if d := time.Since(began) - 24*time.Hour; d != grace {
				t.Errorf("it is ended after %v, want %v", d, grace)
			}
		})
	}
}
