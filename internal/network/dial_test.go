package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/thread"
	"berth/test/timeouts"
)

// listenAt answers "pod" to whoever connects to an address in a network namespace.
func listenAt(t *testing.T, netns, network, address string) {
	t.Helper()
	err := thread.Run(func() error {
		f, err := os.Open(netns)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		l, err := net.Listen(network, address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				_, _ = io.WriteString(c, "pod")
				_ = c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDialLocal(t *testing.T) {
	ns := testNamespaces(t, 71)
	if err := Pin(ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Unpin(ns) })
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	listenAt(t, ns.Net, "tcp4", "127.0.0.1:81")
	listenAt(t, ns.Net, "tcp6", "[::1]:82")
	own, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	port := uint16(own.Addr().(*net.TCPAddr).Port)
	c, err := DialLocal(t.Context(), "", port)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	for _, bad := range []struct {
		ns    string
		port  uint16
		wants []string
	}{
		{ns.Net, port, []string{"127.0.0.1", "connection refused", "[::1]"}},
		{ns.Net + "-gone", 81, []string{"open network namespace", "no such file"}},
		{"/proc/self/status", 81, []string{"enter network namespace"}},
	} {
		_, err := DialLocal(t.Context(), bad.ns, bad.port)
		for _, w := range bad.wants {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("port %d in %s: %v, which does not say %q", bad.port, bad.ns, err, w)
			}
		}
	}
	var all sync.WaitGroup
	for i := range 300 {
		all.Go(func() {
			c, err := DialLocal(t.Context(), ns.Net, uint16(81+i%2))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if got, err := io.ReadAll(c); string(got) != "pod" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	all.Wait()
	for end := time.Now().Add(timeouts.For(30 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
		away := strayThreads(here)
		if len(away) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("threads stayed in another network namespace: %v", away)
		}
	}
}

// strayThreads are those of this process in another network namespace than here.
func strayThreads(here string) (away []string) {
	tasks, _ := filepath.Glob("/proc/self/task/*/ns/net")
	for _, task := range tasks {
		if ns, err := os.Readlink(task); err == nil && ns != here {
			away = append(away, task+" "+ns)
		}
	}
	return away
}

// TestDialLocalGivesUp has a port that nobody answers at.
func TestDialLocalGivesUp(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
		unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(at.(*unix.SockaddrInet4).Port)
	var full []net.Conn // with its queue full, the kernel does not answer
	defer func() {
		for _, c := range full {
			_ = c.Close()
		}
	}()
	for {
		// Of a socket that listens these are how many wait to be accepted, and how many may; one more does.
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			t.Fatal(err)
		}
		if info.Unacked > info.Sacked {
			break
		}
		if c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 200*time.Millisecond); err == nil {
			full = append(full, c)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := DialLocal(ctx, "", port); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ends with %v", err)
	}
	if took := time.Since(began); took > 30*time.Second { // the kernel gives up after two minutes
		t.Errorf("it took %v", took)
	}
}
