package nri

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// crowded is a listener for whose connections the kernel has no room at first.
type crowded struct {
	net.Listener
	errs []error
}

func (l *crowded) Accept() (net.Conn, error) {
	if len(l.errs) == 0 {
		return l.Listener.Accept()
	}
	err := l.errs[0]
	l.errs = l.errs[1:]
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
}

// A plugin that connects while there is no room for it is accepted when there is. An end is an end.
func TestAcceptGoesOn(t *testing.T) {
	path := t.TempDir() + "/s"
	inner := listenAt(t, path)
	l := retrying{
		&crowded{inner, []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ECONNABORTED}},
		slog.New(slog.DiscardHandler),
	}
	plugin, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer plugin.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	_ = l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed listener: %v", err)
	}
}
