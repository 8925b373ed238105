package runtime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestNamesOfAnEarlierDaemon has an earlier daemon with the same process id, as the first process of a container gets
// it again, leave the file of an exec to the monitor, and a socket of a forwarded port: neither is used again.
func TestNamesOfAnEarlierDaemon(t *testing.T) {
	pod, ctr := newID(), newID()
	cfg := Config{State: t.TempDir()}
	cfg.Helper = func(context.Context, string, *exec.Cmd) error { return errors.New("no sandbox") }
	dir := cfg.bundle(pod, ctr)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	old := map[string]bool{}
	const others = "an exec that waits for its turn"
	for n := range 2000 {
		path := filepath.Join(dir, fmt.Sprintf("process-%d-%d.json", os.Getpid(), n))
		old[filepath.Base(path)] = true
		if err := os.WriteFile(path, []byte(others), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := map[string]bool{}
	for range 10 {
		name, _, err := cfg.processFile(pod, ctr, &specs.Process{Args: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		names[name] = true
	}
	for name := range names {
		if old[name] || !strings.HasPrefix(name, "process-") {
			t.Errorf("an exec has the file %s", name)
		}
	}
	if len(names) != 10 {
		t.Errorf("ten execs have the files %v", names)
	}

	d, err := os.Open(cfg.dir(pod))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for n := range 20 {
		path := fmt.Sprintf("/proc/self/fd/%d/forward-%s-%d", d.Fd(), pod[:12], n)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		_ = l.Close()
	}
	_, err = DialInside(t.Context(), &Runtime{cfg: cfg}, pod, Handler{Path: "/runsc"}, 80)
	if err == nil || errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "no sandbox") {
		t.Errorf("a port is forwarded: %v", err)
	}
}
