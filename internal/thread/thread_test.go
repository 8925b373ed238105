package thread

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRunSparesTheFirst fails where f runs in the process's first thread, which then stays as f left it for good.
func TestRunSparesTheFirst(t *testing.T) {
	for range 300 {
		var tid int
		if err := Run(func() error { tid = unix.Gettid(); return nil }); err != nil || tid == os.Getpid() {
			t.Fatalf("ran in thread %d of process %d: %v", tid, os.Getpid(), err)
		}
	}
}
