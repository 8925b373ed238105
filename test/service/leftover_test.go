package service

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"berth/test/installed"
)

// A CNI plugin whose ADD does not end. It tells which process it is.
const (
	slowPlugin = "/opt/cni/bin/slow-add"
	slowRuns   = "/run/slow-add"
	slowScript = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD) echo $$ >` + slowRuns + `.new; mv ` + slowRuns + `.new ` + slowRuns + `; exec sleep 100000 ;;
esac
`
	slowNetwork = `{"cniVersion":"1.0.0","name":"slow","plugins":[{"type":"slow-add"}]}`
)

// endWithHelpers has a command end the daemon while others run in its unit, and wants the next one to serve.
func endWithHelpers(t *testing.T, pid int, end ...string) int {
	_ = os.Remove(slowRuns)
	other := exec.Command("sleep", "100000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	procs := filepath.Join(own, "cgroup.procs")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(other.Process.Pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	go func() {
		_, _ = installed.Try("berth", "run", "-d", "--name", "slow", image, "true") // its daemon ends
		close(answered)
	}()
	plugin := ""
	installed.Eventually(t, "the CNI plugin runs", func() bool {
		text, err := os.ReadFile(slowRuns)
		plugin = strings.TrimSpace(string(text))
		return err == nil
	})
	given, err := os.ReadFile(filepath.Join(filepath.Dir(own), "cgroup.subtree_control"))
	if err != nil || !strings.Contains(string(given), "memory") {
		t.Fatalf("the controllers below the unit: %s, %v", given, err)
	}
	installed.Run(t, end[0], end[1:]...)
	pid = serving(t, pid)
	if group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err != nil ||
		!strings.HasSuffix(strings.TrimSpace(string(group)), unit+"/daemon") {
		t.Errorf("the next daemon is in %s, %v", group, err)
	}
	installed.Eventually(t, "the memory of the next daemon is bounded", func() bool {
		text, err := os.ReadFile(filepath.Join(own, "memory.max"))
		return err == nil && strings.TrimSpace(string(text)) != "max"
	})
	installed.Eventually(t, "the next daemon has ended the plugin", func() bool {
		_, err := os.Stat("/proc/" + plugin)
		return os.IsNotExist(err)
	})
	installed.Eventually(t, "the pod of the plugin is undone", func() bool {
		return !strings.Contains(installed.Run(t, "berth", "pods"), "slow")
	})
	<-answered
	return pid
}
