package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSocketOfAnother wants a socket to be taken from a process that has ended alone, and not from one that accepts
// nobody: its backlog is full, so that nobody can connect.
func TestSocketOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	address := &unix.SockaddrUnix{Name: path}
	for _, err := range []error{unix.Bind(l, address), unix.Listen(l, 0)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for {
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(c)
		if err := unix.Connect(c, address); err == unix.EAGAIN {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := removeStale(path, "--socket"); err == nil || !strings.Contains(err.Error(), "accepts nobody") {
		t.Errorf("the socket of another: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	_ = unix.Close(l)
	if err := removeStale(path, "--socket"); err != nil {
		t.Errorf("a stale socket: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the stale socket is there")
	}
}

// TestReplacedSocketStays wants a socket to be removed by the daemon that made it, and not where another process has
// put its own in the same place.
func TestReplacedSocketStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	own, err := listenTo(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := listenTo(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*ownSocket{own, other} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("the socket of the other process is gone: %v", err)
		}
		_ = s.Close()
		s.name.Remove()
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a socket is left by the process that made it")
	}
}
