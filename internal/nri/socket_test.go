package nri

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/timeouts"
)

// listenAt listens at path. Its socket stays when it closes, as that of a killed process does.
func listenAt(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// answers says whether a connection to path reaches l. Others that looked whether somebody listens may be queued
// before it.
func answers(t *testing.T, l net.Listener, path string) bool {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	found := make(chan bool)
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				found <- false
				return
			}
			var one [1]byte
			n, _ := in.Read(one[:])
			_ = in.Close()
			if n == 1 {
				found <- true
				return
			}
		}
	}()
	select {
	case ok := <-found:
		return ok
	case <-time.After(timeouts.For(10 * time.Second)):
		return false
	}
}

// take does what Start does with a socket, with l where the adaptation listens.
func take(t *testing.T, s *socket) (*net.UnixListener, error) {
	t.Helper()
	if err := s.prepare(); err != nil {
		return nil, err
	}
	l := listenAt(t, s.private)
	return l, s.place()
}

// only wants the directory to hold nothing but these names.
func only(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(names) {
		t.Errorf("%s holds %v, wanted %v, %v", dir, got, names, err)
	}
}

// A free path is taken, and one whose process is gone; the directory is made. Closing removes what is ours.
func TestSocketIsTaken(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, path string){
		"no directory":                func(t *testing.T, path string) { _ = os.Remove(filepath.Dir(path)) },
		"nothing":                     func(*testing.T, string) {},
		"stale":                       func(t *testing.T, path string) { _ = listenAt(t, path).Close() },
		"killed before it was placed": func(t *testing.T, path string) { _ = listenAt(t, path+".me").Close() },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "nri")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "nri.sock")
			before(t, path)
			s := newSocket(path, "me")
			l, err := take(t, s)
			if err != nil {
				t.Fatal(err)
			}
			only(t, dir, "nri.sock")
			if !answers(t, l, path) || !s.placed.Ours() {
				t.Error("a plugin does not reach it")
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("it is %v, %v", info.Mode(), err)
			}
			_ = l.Close()
			s.placed.Remove()
			only(t, dir)
		})
	}
}

// What another process has is left alone, whatever it is and however busy that process is.
func TestSocketOfAnother(t *testing.T) {
	for name, c := range map[string]struct {
		before func(t *testing.T, path string)
		inUse  bool
	}{
		"listens": {func(t *testing.T, path string) { listenAt(t, path) }, true},
		"full backlog": {func(t *testing.T, path string) {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err := errors.Join(err, unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			for { // nobody accepts
				conn, err := net.Dial("unix", path)
				if errors.Is(err, unix.EAGAIN) {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
			}
		}, true},
		"datagrams": {func(t *testing.T, path string) {
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
		}, true},
		"link to one that listens": {func(t *testing.T, path string) {
			listenAt(t, path+".other")
			link(t, path+".other", path)
		}, true},
		"link to a stale one": {func(t *testing.T, path string) {
			_ = listenAt(t, path+".other").Close()
			link(t, path+".other", path)
		}, false},
		"link to nowhere": {func(t *testing.T, path string) { link(t, "nowhere", path) }, false},
		"file":            {func(t *testing.T, path string) { write(t, path) }, false},
		"directory":       {func(t *testing.T, path string) { mkdir(t, path) }, false},
		"full directory":  {func(t *testing.T, path string) { mkdir(t, path); write(t, path+"/x") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			c.before(t, path)
			was, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			s := newSocket(path, "me")
			_, err = take(t, s)
			if err == nil || errors.Is(err, errInUse) != c.inUse || !strings.Contains(err.Error(), path) {
				t.Errorf("taking it: %v", err)
			}
			s.placed.Remove()
			if is, err := os.Lstat(path); err != nil || !os.SameFile(was, is) {
				t.Errorf("it is gone: %v", err)
			}
			if _, err := os.Lstat(s.private); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("something is left beside it: %v", err)
			}
		})
	}
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// A path where no socket can be is an error, and not one that says that somebody is there.
func TestSocketThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file")
	for name, path := range map[string]string{
		"below a file": dir + "/file/nri.sock", "too long": dir + "/" + strings.Repeat("s", maxSocketPath),
		"on a file system for reading": "/proc/nri.sock",
	} {
		if _, err := take(t, newSocket(path, "me")); err == nil || errors.Is(err, errInUse) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Another process that puts its socket there between the look and the placing keeps it.
func TestSocketIsTakenMeanwhile(t *testing.T) {
	for name, stale := range map[string]bool{"free before": false, "stale before": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "nri.sock")
			if stale {
				_ = listenAt(t, path).Close()
			}
			s := newSocket(path, "me")
			if err := s.prepare(); err != nil {
				t.Fatal(err)
			}
			listenAt(t, s.private)
			_ = os.Remove(path)
			other := listenAt(t, path)
			if err := s.place(); !errors.Is(err, errInUse) {
				t.Errorf("placing: %v", err)
			}
			s.placed.Remove()
			only(t, dir, "nri.sock")
			if !answers(t, other, path) {
				t.Error("it was taken from the other process")
			}
		})
	}
}

// Whoever replaces our socket keeps theirs when we close.
func TestReplacedSocketStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nri.sock")
	s := newSocket(path, "me")
	l, err := take(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil || s.placed.Ours() {
		t.Errorf("a socket that is gone is ours: %v", err)
	}
	other := listenAt(t, path)
	if s.placed.Ours() {
		t.Error("the socket of another is ours")
	}
	_ = l.Close()
	s.placed.Remove()
	if !answers(t, other, path) {
		t.Error("it was removed from under the other process")
	}
}
