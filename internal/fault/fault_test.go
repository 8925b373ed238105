//go:build berth_fault

package fault

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

func TestPoints(t *testing.T) {
	if mode := os.Getenv("FAULT_CHILD"); mode != "" {
		if err := At("a"); !errors.Is(err, ErrInjected) {
			os.Exit(3)
		}
		if At("b") != nil {
			os.Exit(4)
		}
		if At("b") == nil { // the second pass fails, the third kills
			os.Exit(6)
		}
		_ = At("b")
		os.Exit(5)
	}
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(os.Args[0], "-test.run=TestPoints")
	plan := "BERTH_FAULT=a=error,b=kill#3,b=error:planted#2"
	cmd.Env = append(os.Environ(), "FAULT_CHILD=1", plan, "BERTH_FAULT_TRACE="+trace)
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("child ended with %v, wanted SIGKILL", err)
	}
	if got, _ := os.ReadFile(trace); string(got) != "a\nb\nb\nb\n" {
		t.Fatalf("trace %q", got)
	}
}
