package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/admin"
	"berth/test/timeouts"
)

// crowded is a listener for which there is no room at first.
type crowded struct {
	net.Listener
	full int
}

func (l *crowded) Accept() (net.Conn, error) {
	if l.full > 0 {
		l.full--
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: os.NewSyscallError("accept4", unix.EMFILE)}
	}
	return l.Listener.Accept()
}

// hello sends something through a forwarded port and returns what comes back.
func hello(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "hello")
	_ = conn.(*net.TCPConn).CloseWrite()
	text, _ := io.ReadAll(conn)
	return string(text)
}

// forwarding forwards a port of a pod, through what wrap makes of its listener, until end is called. errs is what it
// says.
func forwarding(t *testing.T, wrap func(net.Listener) net.Listener) (f forwarded, errs *safeBuffer, end func()) {
	t.Helper()
	d := startDaemon(t)
	c, err := (&app{socket: d.socket}).dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	if f, err = listenAt("127.0.0.1", ":80"); err != nil {
		t.Fatal(err)
	}
	if wrap != nil {
		f.Listener = wrap(f.Listener)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	errs, done := &safeBuffer{}, make(chan struct{})
	go func() {
		defer close(done)
		server{c.node, errs, id("aa1"), cancel}.serve(ctx, f)
	}()
	return f, errs, func() {
		cancel(nil)
		_ = f.Close()
		<-done
	}
}

func TestForwardGoesOnWhenThereIsRoom(t *testing.T) {
	f, errs, end := forwarding(t, func(l net.Listener) net.Listener { return &crowded{l, 3} })
	if got := hello(t, f.Addr().String()); got != "hello" {
		t.Errorf("through the port came %q", got)
	}
	end()
	if said := errs.String(); strings.Count(said, "too many open files") != 1 ||
		!strings.Contains(said, f.Addr().String()) {
		t.Errorf("it said %q", said)
	}
}

// TestForwardEndsWithItsPod has a pod refuse one connection, and be gone for the next.
func TestForwardEndsWithItsPod(t *testing.T) {
	d := populated(t)
	fails := make(chan error, 1)
	d.forward = func(*admin.PortForwardRequest) error { return <-fails }
	var errs safeBuffer
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		root := New("v")
		root.SetArgs([]string{"--socket", d.socket, "port-forward", "db", ":80"})
		root.SetOut(w)
		root.SetErr(&errs)
		code <- exitCode(root.ExecuteContext(t.Context()), &errs)
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address, _, _ := strings.Cut(line, " ")
	fails <- status.Error(codes.Unknown, "connection refused")
	if got := hello(t, address); got != "" {
		t.Errorf("%q came from nobody", got)
	}
	fails <- status.Error(codes.NotFound, "pod aa2 is not there")
	hello(t, address)
	select {
	case got := <-code:
		if said := errs.String(); got != 3 || said != "berth: connection refused\nberth: pod aa2 is not there\n" {
			t.Errorf("code %d, %q", got, said)
		}
	case <-time.After(timeouts.For(time.Minute)):
		t.Error("it goes on without a pod")
	}
}

// TestForwardThatEndsCutsItsClients has a client at a port when all ends: it is not to take that for the end of what
// the pod sends.
func TestForwardThatEndsCutsItsClients(t *testing.T) {
	f, errs, end := forwarding(t, nil)
	conn, err := net.Dial("tcp", f.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	end()
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client sees %v", err)
	}
	if said := errs.String(); said != "" {
		t.Errorf("it said %q", said)
	}
}
