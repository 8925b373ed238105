package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/thread"
)

// DialLocal connects to a TCP port of the loopback interface, IPv4 first and then IPv6, in the network namespace that
// is pinned at a path; "" is the node's own. No thread stays in that namespace, and none waits for the connection: it
// is the socket that is made inside.
func DialLocal(ctx context.Context, netns string, port uint16) (*net.TCPConn, error) {
	conn, err := dialSocket(ctx, netns, unix.AF_INET, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		return conn, nil
	}
	conn, err6 := dialSocket(ctx, netns, unix.AF_INET6, &unix.SockaddrInet6{Port: int(port), Addr: [16]byte{15: 1}})
	if err6 == nil {
		return conn, nil
	}
	p := strconv.Itoa(int(port))
	return nil, fmt.Errorf("connect to 127.0.0.1:%s: %w; to [::1]:%s: %w", p, err, p, err6)
}

// dialSocket makes one attempt.
func dialSocket(ctx context.Context, netns string, family int, to unix.Sockaddr) (*net.TCPConn, error) {
	fd, err := socketIn(netns, family)
	if err != nil {
		return nil, err
	}
	err = unix.Connect(fd, to)
	f := os.NewFile(uintptr(fd), "socket") // polled, since it does not block
	defer f.Close()                        // FileConn has its own descriptor
	switch {
	case errors.Is(err, unix.EINPROGRESS):
		if err := awaitConnection(ctx, f); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// socketIn makes a socket that lives in a network namespace.
func socketIn(netns string, family int) (fd int, err error) {
	if netns == "" {
		return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	}
	err = thread.Run(func() error {
		ns, err := unix.Open(netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open network namespace %s: %w", netns, err)
		}
		defer unix.Close(ns)
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", netns, err)
		}
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
		return err
	})
	return fd, err
}

// awaitConnection waits until a socket that connects has done so, or failed.
func awaitConnection(ctx context.Context, f *os.File) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer stop()
	var connErr error
	err = rc.Write(func(fd uintptr) bool {
		var n int
		if n, connErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); connErr != nil {
			return true
		}
		if n != 0 {
			connErr = unix.Errno(n)
			return true
		}
		_, peerErr := unix.Getpeername(int(fd))
		return peerErr == nil // else it still connects
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, connErr)
}
