package inotify

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestExplain looks for the limit in the error, with the error of the kernel still in it.
func TestExplain(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{
		syscall.EMFILE: "max_user_instances", syscall.ENOSPC: "max_user_watches", syscall.EACCES: "",
	} {
		is := os.NewSyscallError("inotify", errno)
		if err := Explain(is); !errors.Is(err, errno) || !strings.Contains(err.Error(), want) ||
			want == "" && err != is {
			t.Errorf("%v: %v", errno, err)
		}
	}
	if err := Explain(nil); err != nil {
		t.Error(err)
	}
}
