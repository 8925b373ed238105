package chaos

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Freezing a file system needs somebody who thaws it for certain. Nobody can thaw one that is mounted nowhere any
// more, as when a run has been killed together with its mounts. So a process outside the run's namespaces holds the
// file system by a descriptor. It thaws when its client has gone, and after mostFrozen in any case.

// mostFrozen is how long a disk hangs at the most.
const mostFrozen = 5 * time.Minute

// freezerVariable makes a program that calls Freezer first the process that freezes; its value is the socket's path.
const freezerVariable = "BERTH_CHAOS_FREEZER"

// Freezer starts the process that freezes disks for runs, and returns its socket and how to end it. In that process
// it does not return. It is to be called before anything else is done, in a program of one thread of control.
func Freezer() (socket string, end func() error, err error) {
	if path := os.Getenv(freezerVariable); path != "" {
		os.Exit(serveFreezer(path))
	}
	dir, err := os.MkdirTemp("/var/tmp", "bt-freezer-")
	if err != nil {
		return "", nil, err
	}
	socket = filepath.Join(dir, "s")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), freezerVariable+"="+socket)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe() // it ends when this does, and so when this process is gone
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if _, err = os.Stat(socket); err == nil {
			break
		}
	}
	return socket, func() error { return errors.Join(in.Close(), cmd.Wait(), os.RemoveAll(dir)) }, err
}

func serveFreezer(path string) int {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos: freezer:", err)
		return 1
	}
	frozen := make(chan func(), 100)
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			done := make(chan struct{})
			frozen <- func() { <-done }
			go func() {
				defer close(done)
				if err := freezeFor(conn); err != nil {
					fmt.Fprintln(os.Stderr, "chaos: freezer:", err)
				}
			}()
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = l.Close()
	for { // what hangs still is thawed, since its client has gone with ours
		select {
		case wait := <-frozen:
			wait()
		default:
			_ = os.RemoveAll(filepath.Dir(path))
			return 0
		}
	}
}

// The ioctls FIFREEZE, _IOWR('X', 119, int), and FITHAW, _IOWR('X', 120, int).
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// freezeFor freezes the file system of the directory that a client sends, until the client goes.
func freezeFor(conn *net.UnixConn) error {
	defer func() { _ = conn.Close() }()
	fd, err := receive(conn)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.IoctlSetInt(fd, fiFreeze, 0); err != nil {
		_, _ = conn.Write([]byte(err.Error()))
		return fmt.Errorf("freeze: %w", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(mostFrozen))
	if _, err = conn.Write([]byte("ok")); err == nil {
		_, _ = conn.Read(make([]byte, 1))
	}
	if err := unix.IoctlSetInt(fd, fiThaw, 0); err != nil {
		_, _ = conn.Write([]byte(err.Error()))
		return fmt.Errorf("thaw: %w", err)
	}
	_, _ = conn.Write([]byte("ok"))
	return nil
}

func receive(conn *net.UnixConn) (fd int, err error) {
	out := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), out)
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(out[:n])
	if err != nil || len(messages) != 1 {
		return 0, fmt.Errorf("%d control messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, fmt.Errorf("%d descriptors: %w", len(fds), err)
	}
	return fds[0], nil
}

// askFreezer has the file system at a path freeze, until thaw is called.
func askFreezer(socket, at string) (thaw func() error, err error) {
	dir, err := os.Open(at)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if _, _, err = conn.WriteMsgUnix([]byte("f"), unix.UnixRights(int(dir.Fd())), nil); err == nil {
		err = answer(conn)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("freeze %s: %w", at, err), conn.Close())
	}
	return func() error {
		err := conn.CloseWrite()
		if err == nil {
			err = answer(conn)
		}
		return errors.Join(err, conn.Close())
	}, nil
}

func answer(conn *net.UnixConn) error {
	buf := make([]byte, 200)
	n, err := conn.Read(buf)
	if err == nil && string(buf[:n]) != "ok" {
		err = errors.New(string(buf[:n]))
	}
	return err
}
