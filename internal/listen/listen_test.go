package listen

import (
	"errors"
	"net"
	"os"
	"path/filepath"
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

// TestAcceptGoesOn has a client connect while there is no room for it: it is accepted when there is. An end is an end.
func TestAcceptGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	waited := 0
	l := Lasting{
		&crowded{at(t, path), []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ECONNABORTED}},
		func(error) { waited++ },
	}
	client, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := l.Accept()
	if err != nil || waited != 1 {
		t.Fatalf("%v, told %d times", err, waited)
	}
	_ = c.Close()
	_ = l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed listener: %v", err)
	}
}

func at(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	l.SetUnlinkOnClose(false)
	return l
}

// TestUses looks at paths of each use.
func TestUses(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	at(t, path("served"))
	_ = at(t, path("stale")).Close()
	deaf, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(deaf)
	if err := errors.Join(
		unix.Bind(deaf, &unix.SockaddrUnix{Name: path("datagrams")}), os.WriteFile(path("file"), nil, 0o600),
		os.Symlink("served", path("to served")), os.Symlink("stale", path("to stale")), os.Symlink("none", path("to none")),
	); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Use{
		"none": Free, "none/below": Free, "file": Other, ".": Other, "served": Served, "stale": Stale, "datagrams": Deaf,
		"to served": Served, "to stale": Other, "to none": Other,
	} {
		if got, err := UseOf(path(name)); got != want || err != nil {
			t.Errorf("%s: %d, %v; wanted %d", name, got, err, want)
		}
	}
	if _, err := UseOf(path("file/below")); err == nil {
		t.Error("what is below a file can be told")
	}
}

// TestNames wants a name to be taken away while it is of the socket that was made, and not of another one in its place.
func TestNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	at(t, path)
	first, err := NameOf(path)
	if err != nil || !first.Ours() || (Name{}).Ours() {
		t.Fatal("a name is not known again, or none is", err)
	}
	if err := os.Rename(path, path+".old"); err != nil { // kept, so that no other file gets its inode
		t.Fatal(err)
	}
	at(t, path)
	second, err := NameOf(path)
	if err != nil {
		t.Fatal(err)
	}
	if first.Remove(); first.Ours() || !second.Ours() {
		t.Error("the socket of another was taken away, or taken for ours")
	}
	if second.Remove(); second.Ours() {
		t.Error("a socket is left")
	}
	second.Remove()
}
