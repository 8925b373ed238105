package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/patience"
)

// TestSupervised is a daemon whose service manager wants to hear from it.
func TestSupervised(t *testing.T) {
	cfg := place(t)
	name := filepath.Join(t.TempDir(), "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_PID", "")
	t.Setenv("WATCHDOG_USEC", "30000000")
	stop := start(t, cfg)
	next := func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(patience.For(time.Minute))); err != nil {
			t.Fatal(err)
		}
		var text [512]byte
		n, err := conn.Read(text[:])
		if err != nil {
			t.Fatal(err)
		}
		return string(text[:n])
	}
	if got, want := next(), "READY=1\nSTATUS=Serving CRI at "+cfg.Socket; got != want {
		t.Errorf("told %q first, want %q", got, want)
	}
	if got := next(); got != "WATCHDOG=1" { // which needs an answer of the daemon to itself
		t.Errorf("told %q while it serves", got)
	}
	stop()
	got := next()
	for got == "WATCHDOG=1" {
		got = next()
	}
	if !strings.HasPrefix(got, "STOPPING=1\n") {
		t.Errorf("told %q at its end", got)
	}
}

// TestAnswers wants a daemon that nobody can reach any more to be known as such.
func TestAnswers(t *testing.T) {
	cfg := place(t)
	stop := start(t, cfg)
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience.For(time.Minute))
		defer cancel()
		return answers(ctx, cfg.Socket)
	}
	if err := ask(); err != nil {
		t.Errorf("a daemon that serves: %v", err)
	}
	if err := os.Remove(cfg.Socket); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err == nil {
		t.Error("a daemon without its socket is taken for one that serves")
	}
	stop()
}
