package footprint

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"berth/test/timeouts"
)

// TestDescendants finds a child of a child.
func TestDescendants(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 1000 & wait")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, pid := range append(Descendants(cmd.Process.Pid), cmd.Process.Pid) {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
		_ = cmd.Wait()
	}()
	for end := time.Now().Add(timeouts.For(10 * time.Second)); len(Descendants(cmd.Process.Pid)) == 0; {
		if time.Now().After(end) {
			t.Fatal("a process that was started is not found")
		}
		time.Sleep(time.Millisecond)
	}
	if !slices.Contains(Descendants(os.Getpid()), Descendants(cmd.Process.Pid)[0]) {
		t.Error("what a child has started is not found")
	}
}
