package monitor

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOpenProcessWithoutDescriptors has a process be opened while there is no descriptor for it, for a moment: it has
// not ended.
func TestOpenProcessWithoutDescriptors(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	back := time.AfterFunc(openRest/2, func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
	defer back.Stop()
	fd, err := openProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	if _, err := openProcess(1 << 30); err != unix.ESRCH && err != unix.EINVAL {
		t.Errorf("no process: %v", err)
	}
}
