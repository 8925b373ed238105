package monitor

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCrunCannotBeWritten has a monitor execute crun from a read-only mount, which it therefore does not make itself.
func TestCrunCannotBeWritten(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	data, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "crun")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	r := newReaper("", &pace{})
	pid, _, err := r.fork([]string{path, "1000"}, &syscall.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(fmt.Sprintf("/proc/%d/exe", pid), &st); err != nil || st.Flags&unix.ST_RDONLY == 0 {
		t.Errorf("flags %#x, %v", st.Flags, err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || status.Signal() != unix.SIGKILL {
		t.Errorf("%v, %v", status, err)
	}
}
