package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/listen"
)

// lockRoot makes sure that one daemon alone uses the root. A root that has become full or read-only is locked all the
// same: the pods that there are want to be stopped.
func lockRoot(root string) (*os.File, error) {
	if err := os.MkdirAll(root, 0o711); err != nil {
		return nil, fmt.Errorf("root directory: %w", err)
	}
	path := filepath.Join(root, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	readOnly := errors.Is(err, unix.EROFS)
	if readOnly {
		if old, openErr := os.Open(path); openErr == nil {
			f, err = old, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("root directory: %w", err)
	}
	err = lock(f)
	if errors.Is(err, unix.EWOULDBLOCK) {
		by := ""
		if !readOnly { // else the pid is from before
			by = holder(f)
		}
		err = fmt.Errorf("another daemon%s holds the root %s: stop it, or give this one another --root, --state and --socket",
			by, root)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	// For people, and for the words of a second daemon: a full disk is no reason not to start.
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(fmt.Sprint(os.Getpid())), 0)
	return f, nil
}

// holder reads from a lock who holds it.
func holder(f *os.File) string {
	var text [16]byte
	n, _ := f.ReadAt(text[:], 0) // at most less than all of it
	if pid := strings.TrimSpace(string(text[:n])); pid != "" {
		return " (pid " + pid + ")"
	}
	return ""
}

// lockState makes sure that one daemon alone uses the state directory: it removes there what belongs to no pod of its
// own.
func lockState(state string) (*os.File, error) {
	return lockDir(state, 0o711, "state directory", "another --state and --socket")
}

// lockImages makes sure that one daemon alone uses the image store: it removes there what no image and container of
// its own needs.
func lockImages(root string) (*os.File, error) {
	return lockDir(root, 0o700, "image store", "another images.root")
}

// lockDir locks a directory, which it makes when it is not there.
func lockDir(dir string, mode fs.FileMode, what, instead string) (*os.File, error) {
	if err := os.MkdirAll(dir, mode); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	err = lock(f)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("another daemon, with another root, uses the %s %s: give this one %s", what, dir, instead)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// lock locks an open file or directory until it is closed.
func lock(f *os.File) error {
	for tries := 0; ; tries++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		// A child that a killed daemon was just starting holds the lock too, until it has become its program.
		if !errors.Is(err, unix.EWOULDBLOCK) || tries == lockTries {
			return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		time.Sleep(lockPause)
	}
}

// A lock is tried for three seconds: on a busy machine a child takes its time.
const (
	lockTries = 150
	lockPause = 20 * time.Millisecond
)

// listenTo makes the socket, readable only for its owner from the start. The root is locked, so one that is there is
// left from a daemon that was killed, unless it belongs to a daemon with another root.
func listenTo(path string) (*ownSocket, error) { return listenAt(path, "--socket") }

// listenAt is listenTo at a path that another flag or key says.
func listenAt(path, key string) (*ownSocket, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, fmt.Errorf("socket directory: %w", err)
	}
	if err := removeStale(path, key); err != nil {
		return nil, err
	}
	old := syscall.Umask(0o177)
	l, err := net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the name is removed by serve, last of all
	name, err := listen.NameOf(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), l.Close())
	}
	return &ownSocket{l, name}, nil
}

// ownSocket is a socket that this process listens at, and whose name it takes away at its end.
type ownSocket struct {
	net.Listener
	name listen.Name
}

// removeStale removes a socket at which no process listens, and nothing else.
func removeStale(path, key string) error {
	use, err := listen.UseOf(path)
	switch {
	case err != nil:
		return fmt.Errorf("see whether a process listens at %s: %w", path, err)
	case use == listen.Other:
		return fmt.Errorf("socket %s: something is there that is no socket: remove it, or give this daemon another %s",
			path, key)
	case use == listen.Served:
		return fmt.Errorf("another daemon serves %s: stop it, or give this one another %s", path, key)
	case use == listen.Deaf:
		return fmt.Errorf("another process listens at %s, and accepts nobody: stop it, or give this daemon another %s",
			path, key)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace a stale socket: %w", err)
	}
	return nil
}
