package cgroup

import (
	"os/exec"
	"strconv"
	"testing"
)

// shell starts a shell that ends with the test, and returns its pid.
func shell(t testing.TB, script string) string {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return strconv.Itoa(cmd.Process.Pid)
}
