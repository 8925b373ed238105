package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestFirstPIDNamespace tells a node in a PID namespace from another. It runs itself again in one.
func TestFirstPIDNamespace(t *testing.T) {
	const inside = "BERTH_TEST_IN_PID_NAMESPACE"
	if os.Getenv(inside) != "" {
		if inFirstPIDNamespace() {
			t.Error("a new namespace is taken for the first one")
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	name, err := os.Readlink("/proc/self/ns/pid")
	if got := inFirstPIDNamespace(); err != nil || got != strings.Contains(name, "4026531836") {
		t.Errorf("%s is the first: %v, %v", name, got, err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFirstPIDNamespace$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("in a namespace of its own: %v\n%s", err, out)
	}
}
