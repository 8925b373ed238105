package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a")
	if err := Write(file, "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(file, []byte("longer"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(file, "x"); err != nil {
		t.Error(err)
	}
	if got, _ := os.ReadFile(file); string(got) != "x" {
		t.Errorf("%q", got)
	}
}

// TestReclaimThatFails asks for more memory than a group has, which the kernel answers with EAGAIN.
func TestReclaimThatFails(t *testing.T) {
	if Mode() != V2 {
		t.Skip("this machine is not on cgroup v2: make test-vm has one that is")
	}
	dir := filepath.Join("/sys/fs/cgroup", "berth-reclaim-test")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if _, err := os.Stat(filepath.Join(dir, "memory.reclaim")); errors.Is(err, fs.ErrNotExist) {
		t.Skip("this kernel has no memory.reclaim (Linux 5.19)")
	}
	done := make(chan error, 1)
	go func() { done <- Write(filepath.Join(dir, "memory.reclaim"), "1073741824") }()
	select {
	case err := <-done:
		if !errors.Is(err, unix.EAGAIN) {
			t.Errorf("%v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not return")
	}
}
