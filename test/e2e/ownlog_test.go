package e2e

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/node"
	"berth/test/timeouts"
)

// TestLogThatNobodyReads has a daemon whose standard error is a pipe that is not read, as that of a journald whose disk
// hangs. Pods come and go, and the problem is told. When it is read again it has what was logged, and when its reader
// has gone the daemon goes on.
func TestLogThatNobodyReads(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	starter := []string{"sh", "-c", `exec "$@" 2>` + pipe, "sh"}
	r := ownNode(t, node.Options{Runtime: runtimes()[0], Starter: starter})
	r.pull("busybox:latest")
	for range 2000 {
		r.ok(r.within(timeouts.For(10*time.Second), func(ctx context.Context) error {
			_, err := r.n.Runtime.Version(ctx, "")
			return err
		}))
	}
	life := func() {
		p := r.pod()
		c := p.start(busybox("main", "sleep 1000000"))
		r.wantText("exec", c.exec("echo", "hi"), "hi")
		p.remove()
	}
	life()
	const told = "the daemon's log: what reads the daemon's standard error"
	if out, _, code := r.berth("check"); code == 0 || !strings.Contains(out, told) {
		r.Errorf("berth check does not tell of the log: %d, %s", code, out)
	}
	found := make(chan bool)
	go func() {
		lines := bufio.NewScanner(reader)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "method=RemovePodSandbox") {
				found <- true
				return
			}
		}
	}()
	select {
	case <-found:
	case <-time.After(timeouts.For(10 * time.Second)):
		r.Error("what was logged meanwhile is not there")
	}
	r.ok(reader.Close())
	life()
	if out := r.mustBerth("check"); strings.Contains(out, told) {
		r.Errorf("berth check still tells of the log: %s", out)
	}
}
