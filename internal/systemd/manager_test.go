package systemd

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/godbus/dbus/v5"

	"berth/test/timeouts"
)

// TestSystemdThatSaysNothing wants each of many callers to wait for its own time alone where systemd takes connections
// and does not answer, and the manager to be closed at once meanwhile.
func TestSystemdThatSaysNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "private")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	connections := make(chan net.Conn, 100)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections <- conn
		}
	}()
	m := &Manager{places: []place{{path, false}}}
	const callers, each = 10, time.Second
	begin := time.Now()
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), each)
			defer cancel()
			if err := m.forget(ctx, "a.scope"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a caller: %v", err)
			}
		})
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(timeouts.For(5 * each)):
		t.Fatalf("callers that wait for %v wait since %v", each, time.Since(begin))
	}
	m.Close()
	if took := time.Since(begin); took > timeouts.For(5*each) {
		t.Errorf("it is closed after %v", took)
	}
	if n := len(connections); n != 1 {
		t.Errorf("%d connections for one that is waited for", n)
	}
	(<-connections).Close() // and so the making of it ends
	ctx, cancel := context.WithTimeout(t.Context(), each)
	defer cancel()
	if err := m.forget(ctx, "a.scope"); err == nil {
		t.Error("an answer of nobody")
	}
	for len(connections) > 0 {
		(<-connections).Close()
	}
}

// TestPanicWhileSystemdIsReached fails all calls that wait for the connection, and no later one.
func TestPanicWhileSystemdIsReached(t *testing.T) {
	waiting := make(chan struct{})
	other := errors.New("nobody there")
	m := &Manager{connect: func(context.Context, []place) (*dbus.Conn, error) {
		<-waiting
		panic("boom")
	}}
	ended := make(chan error)
	const callers = 10
	for range callers {
		go func() { ended <- m.forget(t.Context(), "a.scope") }()
	}
	close(waiting)
	for range callers {
		if err := <-ended; !errdefs.IsInternal(err) || !strings.Contains(err.Error(), "reach systemd: panic: boom; ") {
			t.Errorf("a caller: %v", err)
		}
	}
	m.connect = func(context.Context, []place) (*dbus.Conn, error) { return nil, other }
	if err := m.forget(t.Context(), "a.scope"); !errors.Is(err, other) {
		t.Errorf("a later call: %v", err)
	}
}

// TestDialHeedsItsTime wants who greets systemd not to wait for longer than its context says.
func TestDialHeedsItsTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "private")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := dial(ctx, path, false); err == nil || time.Since(begin) > timeouts.For(5*time.Second) {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
}
