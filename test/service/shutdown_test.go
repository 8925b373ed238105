package service

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/test/installed"
)

// The kubelet of these tests: what it does when it is stopped, and where it tells of it.
const (
	kubeletUnit   = "/etc/systemd/system/kubelet.service"
	kubeletScript = "/usr/local/sbin/stop-kubelet"
	kubeletSaid   = "/var/lib/stopped-kubelet"
)

// TestShutdown leaves a node with pods to be shut down, as the machine is after it. A service with the kubelet's name,
// which knows nothing of berth.service, needs a while to stop, and the runtime until its end.
func TestShutdown(t *testing.T) {
	script := "#!/bin/sh\nfor i in 1 2 3; do sleep 2; berth ps -a >/run/ps 2>&1 && grep -c job /run/ps; done >" +
		kubeletSaid + " 2>&1\n"
	if err := os.WriteFile(kubeletScript, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	text := "[Unit]\nDescription=Stands for the kubelet\n[Service]\nType=oneshot\nRemainAfterExit=yes\n" +
		"ExecStart=/bin/true\nExecStop=" + kubeletScript +
		"\nTimeoutStopSec=10min\n"
	if err := os.WriteFile(kubeletUnit, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	installed.Run(t, "systemctl", "daemon-reload")
	installed.Run(t, "systemctl", "start", "kubelet")
	installed.Run(t, "berth", "run", "--name", "job", image, "true")
	installed.Run(t, "berth", "run", "-d", "--name", "polite", image, "sh", "-c", "trap 'echo bye; exit 7' TERM; echo "+
		"up; while :; do sleep 0.2; done")
	const loop = "trap 'exit 0' TERM; echo began; while :; do sleep 0.2; done"
	for name, policy := range restarted {
		installed.Run(t, "berth", "run", "-d", "--name", name, "--restart", policy, image, "sh", "-c", loop)
	}
	installed.Run(t, "berth", "stop", "stopped-always", "stopped")
	installed.Eventually(t, "the container listens to signals", func() bool {
		return installed.Run(t, "berth", "logs", "polite") == "up"
	})
}

// restarted are containers that start again by themselves, by their policies. Two of them are stopped before.
var restarted = map[string]string{
	"kept": "unless-stopped", "failing": "on-failure", "stopped-always": "always", "stopped": "unless-stopped",
}

// wantRestarted checks which containers the boot has started again, and removes them.
func wantRestarted(t *testing.T) {
	t.Helper()
	for name, runs := range map[string]bool{"kept": true, "stopped-always": true, "failing": false, "stopped": false} {
		state := func() string {
			return installed.Run(t, "berth", "ps", "-a", "--label", "berth.run="+name, "-o", "json")
		}
		if runs {
			installed.Eventually(t, name+" runs again", func() bool {
				return strings.Contains(state(), "CONTAINER_RUNNING") &&
					strings.Contains(installed.Run(t, "berth", "logs", name), "began")
			})
		} else if got := state(); strings.Contains(got, "CONTAINER_RUNNING") {
			t.Errorf("%s runs again: %s", name, got)
		}
		installed.Run(t, "berth", "rm", "-f", name)
	}
}

// TestBooted is the next boot.
func TestBooted(t *testing.T) {
	serving(t, 0)
	wantRestarted(t)
	said, err := os.ReadFile(kubeletSaid)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(strings.Fields(string(said)), " ") != "1 1 1" {
		t.Errorf("the daemon did not answer until the kubelet had stopped: %q", said)
	}
	installed.WantEnd(t, "job", 0, "Completed")
	installed.WantEnd(t, "polite", 7, "Error")
	got := installed.Run(t, "berth", "logs", "polite")
	// a shell may tell of its child
	if said := strings.Fields(strings.ReplaceAll(got, "Terminated", "")); !slices.Equal(said, []string{"up", "bye"}) {
		t.Errorf("the log of a container that was ended by the shutdown: %q", got)
	}
	installed.Eventually(t, "the addresses are free", func() bool {
		held, err := filepath.Glob(installed.Leases + "/10.*")
		return err == nil && len(held) == 0
	})
	if out, err := installed.Try("berth", "check"); err != nil {
		t.Errorf("berth check: %v\n%s", err, out)
	}
	installed.WantNothingRuns(t)
	installed.Run(t, "berth", "rm", "-f", "job", "polite")
	installed.Run(t, "systemctl", "disable", "--now", "kubelet")
	for _, path := range []string{kubeletUnit, kubeletScript, kubeletSaid} {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
	installed.Run(t, "systemctl", "daemon-reload")
}
