package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// manager listens as systemd does, and names itself in the environment.
func manager(t *testing.T, name string, watchdog time.Duration) (next func() string) {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	t.Setenv("WATCHDOG_USEC", fmt.Sprint(watchdog.Microseconds()))
	return func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		var text [512]byte
		n, err := conn.Read(text[:])
		if err != nil {
			t.Fatalf("nothing was told: %v", err)
		}
		return string(text[:n])
	}
}

func TestTells(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "s"),
		"@berth-test-" + filepath.Base(t.TempDir()) + fmt.Sprint(os.Getpid())} {
		next := manager(t, name, 0)
		s := FromEnvironment()
		s.Ready("serving")
		s.Stopping("ending")
		for _, want := range []string{"READY=1\nSTATUS=serving", "STOPPING=1\nSTATUS=ending"} {
			if got := next(); got != want {
				t.Errorf("%s: told %q, want %q", name, got, want)
			}
		}
	}
}

func TestEnvironmentIsNotInherited(t *testing.T) {
	manager(t, filepath.Join(t.TempDir(), "s"), time.Second)
	FromEnvironment()
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"} {
		if v, ok := os.LookupEnv(name); ok {
			t.Errorf("%s=%s is left for the daemon's children", name, v)
		}
	}
}

func TestWatchdog(t *testing.T) {
	for _, c := range []struct {
		name, pid, usec string
		want            time.Duration
	}{
		{"for this process", fmt.Sprint(os.Getpid()), "3000000", 3 * time.Second},
		{"for whoever", "", "3000000", 3 * time.Second},
		{"for another", "1", "3000000", 0},
		{"none", "", "", 0},
		{"nonsense", "", "soon", 0},
	} {
		t.Setenv("NOTIFY_SOCKET", "/none")
		t.Setenv("WATCHDOG_PID", c.pid)
		t.Setenv("WATCHDOG_USEC", c.usec)
		if got := FromEnvironment().watchdog; got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestWatch wants signs of life while the daemon answers, none while it does not, and them again after.
func TestWatch(t *testing.T) {
	next := manager(t, filepath.Join(t.TempDir(), "s"), 60*time.Millisecond)
	s := FromEnvironment()
	var log bytes.Buffer
	s.Log = slog.New(slog.NewTextHandler(&log, nil))
	ctx, cancel := context.WithCancel(t.Context())
	var asked, stuck atomic.Int32
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Watch(ctx, func(ctx context.Context) error {
			asked.Add(1)
			switch n := stuck.Load(); {
			case n == 0:
				return nil
			case n == 1: // hangs until its deadline
				<-ctx.Done()
				s.tell("hung")
				stuck.Store(2)
				return context.Cause(ctx)
			case n < 4:
				s.tell("failed")
				stuck.Store(n + 1)
				return errors.New("no answer")
			}
			stuck.Store(0)
			return nil
		})
	}()
	if got := next(); got != "WATCHDOG=1" {
		t.Errorf("told %q", got)
	}
	stuck.Store(1)
	var said []string
	for {
		got := next()
		if got == "WATCHDOG=1" && len(said) == 0 {
			continue // from before it was stuck
		}
		if said = append(said, got); got == "WATCHDOG=1" {
			break
		}
	}
	if got := strings.Join(said, " "); got != "hung failed failed WATCHDOG=1" {
		t.Errorf("told %s", got)
	}
	cancel()
	<-ended
	if text := log.String(); strings.Count(text, "does not answer itself") != 3 || !strings.Contains(text, "no answer") {
		t.Errorf("logged %s", text)
	}
}

func TestNobodyWatches(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "1000")
	s := FromEnvironment()
	s.Ready("")
	s.Watch(t.Context(), func(context.Context) error { return errors.New("must not be asked") })
}

// TestManagerIsGone wants the daemon to go on.
func TestManagerIsGone(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none"))
	s := FromEnvironment()
	var log bytes.Buffer
	s.Log = slog.New(slog.NewTextHandler(&log, nil))
	s.Ready("")
	if !strings.Contains(log.String(), "could not be told") {
		t.Errorf("logged %q", log.String())
	}
}
