package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
	"berth/test/timeouts"
)

// TestHandOverOfWhatExits has a container exit while what is held of it is on its way to a monitor that takes over. The
// monitor gets what was held, and not what has the same number by then.
func TestHandOverOfWhatExits(t *testing.T) {
	monitor, daemon := connected(t)
	held, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	l := newLink(&Config{Log: slog.New(slog.DiscardHandler)}, "p1", newReplacements())
	l.handles.add("c1", handle{pidfd: held})
	c := newClient(daemon, &silence{}, func(*wire.Reply) {}, func() {})
	c.sending.Lock()
	handed := make(chan struct{})
	go func() {
		defer close(handed)
		handOver(t.Context(), l, c, wire.Container{ID: "c1"})
	}()
	awaitRequest(t, c)
	l.handles.report("c1")
	c.sending.Unlock()

	_ = monitor.SetReadDeadline(time.Now().Add(timeouts.For(10 * time.Second)))
	buf, oob := make([]byte, 4<<10), make([]byte, unix.CmsgSpace(4))
	n, on, _, _, err := monitor.ReadMsgUnix(buf, oob)
	if err != nil {
		t.Fatal("nothing is handed over: ", err)
	}
	fds := files(oob[:on])
	defer closeFiles(fds)
	if len(fds) != 1 {
		t.Fatalf("%d descriptors come, want 1", len(fds))
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(fds[0].Fd()), &st); err != nil || st.Rdev != unix.Mkdev(1, 3) {
		t.Errorf("device %d comes (%v), want that of /dev/null", st.Rdev, err)
	}
	var q wire.Request
	if err := json.Unmarshal(buf[:n], &q); err != nil || q.Op != wire.Inherit {
		t.Errorf("asked for %q (%v)", q.Op, err)
	}
	c.end()
	<-handed
}

// connected is a connection as between a monitor and a daemon, both ends of it.
func connected(t *testing.T) (monitor, daemon *net.UnixConn) {
	t.Helper()
	at := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixpacket"}
	listener, err := net.ListenUnix(at.Net, at)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if daemon, err = net.DialUnix(at.Net, nil, at); err != nil {
		t.Fatal(err)
	}
	if monitor, err = listener.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = monitor.Close(), daemon.Close() })
	return monitor, daemon
}

// awaitRequest returns when a request is waiting for its answer, or for its turn to be sent.
func awaitRequest(t *testing.T, c *client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(10*time.Second))
	defer cancel()
	for asked := false; !asked; {
		c.mu.Lock()
		asked = len(c.waiting) > 0
		c.mu.Unlock()
		if ctx.Err() != nil {
			t.Fatal("nothing is asked")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestDroppedIsToldOnce has totals of what was dropped be told in parts, and nothing that was told before this daemon.
func TestDroppedIsToldOnce(t *testing.T) {
	h := newHandles()
	h.add("adopted", handle{dropped: Dropped{Lines: 5, Bytes: 50}})
	h.add("new", handle{})
	for i, c := range []struct {
		ctr       string
		all, want Dropped
	}{
		{"adopted", Dropped{Lines: 5, Bytes: 50}, Dropped{}},
		{"adopted", Dropped{Lines: 7, Bytes: 80}, Dropped{Lines: 2, Bytes: 30}},
		{"adopted", Dropped{Lines: 6, Bytes: 70}, Dropped{}}, // late
		{"new", Dropped{Lines: 3, Bytes: 30}, Dropped{Lines: 3, Bytes: 30}},
		{"new", Dropped{Lines: 3, Bytes: 30}, Dropped{}},
		{"gone", Dropped{Lines: 3, Bytes: 30}, Dropped{}},
	} {
		if got := h.dropped(c.ctr, c.all); got != c.want {
			t.Errorf("%d: %+v, wanted %+v", i, got, c.want)
		}
	}
}

// TestMonitorThatCannotBeAsked writes to a monitor that reads no more, as one that is being killed. That is told as a
// monitor that does not answer, which may be asked again, and ends the connection, so that the next try finds its
// successor.
func TestMonitorThatCannotBeAsked(t *testing.T) {
	monitor, daemon := connected(t)
	c := newClient(daemon, &silence{}, func(*wire.Reply) {}, func() {})
	if err := monitor.CloseRead(); err != nil {
		t.Fatal(err)
	}
	_, err := c.ask(t.Context(), wire.Request{Op: wire.Start, Container: "c1"})
	again := errors.As(err, new(unsentError))
	if !errors.Is(err, errNoMonitor) || !errdefs.IsUnavailable(err) || !again {
		t.Errorf("asked: %v", err)
	}
	for end := time.Now().Add(timeouts.For(10 * time.Second)); !c.lost(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the connection is kept")
		}
	}
}

// TestGivenUp gives up a reopening that does not come to an end. Its monitor is silent only where it does not say that
// it is there.
func TestGivenUp(t *testing.T) {
	for _, there := range []bool{true, false} {
		t.Run(fmt.Sprintf("there=%v", there), func(t *testing.T) {
			t.Parallel()
			monitor, daemon := connected(t)
			s := &silence{}
			c := newClient(daemon, s, func(*wire.Reply) {}, func() {})
			defer c.end()
			go func() { // it answers what it can at once, until the connection ends
				buf := make([]byte, 4<<10)
				for {
					n, err := monitor.Read(buf)
					if err != nil {
						return
					}
					var q wire.Request
					if err := json.Unmarshal(buf[:n], &q); err == nil && q.Op == wire.Hello && there {
						_, _ = monitor.Write(wire.Encode(&wire.Reply{ID: q.ID, Version: wire.Version}))
					}
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := c.call(ctx, wire.Request{Op: wire.ReopenLog, Container: "c1"}); !errors.Is(err, ctx.Err()) {
				t.Errorf("it ends with %v", err)
			}
			silent := func() bool { since, _ := s.lasts(); return !since.IsZero() }
			for end := time.Now().Add(timeouts.For(10 * time.Second)); !there && !silent(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("a monitor that says nothing is not silent")
				}
			}
			if there && silent() {
				t.Error("a monitor that is there is silent")
			}
		})
	}
}
