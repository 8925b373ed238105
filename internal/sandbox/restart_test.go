package sandbox

import (
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
)

// restartable is a pod of berth run of one container that has ended, with a policy.
func restartable(t *testing.T, policy string, labels map[string]string) (*Record, *Container) {
	t.Helper()
	pod, err := NewPodConfig(&runtimeapi.PodSandboxConfig{Labels: labels})
	if err != nil {
		t.Fatal(err)
	}
	asks := map[string]string{annotation.KeyRestart: policy}
	ctr, err := NewContainerConfig(&runtimeapi.ContainerConfig{Annotations: asks})
	if err != nil {
		t.Fatal(err)
	}
	r := &Record{Config: pod, Containers: []*Container{{ID: "c", State: Exited, ExitCode: 1, Config: ctr}}}
	return r, r.Containers[0]
}

// TestStartsAgain is about who stopped what. Policies and codes are in the tests of package restart.
func TestStartsAgain(t *testing.T) {
	own := map[string]string{RunLabel: "p"}
	kubelets := map[string]string{RunLabel: "p", kubeletLabel: "u"}
	for name, c := range map[string]struct {
		policy string
		labels map[string]string
		change func(*Record, *Container)
		want   bool
	}{
		"it failed":               {"always", own, func(*Record, *Container) {}, true},
		"a kubelet's":             {"always", kubelets, func(*Record, *Container) {}, false},
		"a policy that is none":   {"sometimes", own, func(*Record, *Container) {}, false},
		"it was stopped":          {"always", own, func(_ *Record, c *Container) { c.StopAsked = true }, false},
		"its pod was stopped":     {"always", own, func(r *Record, _ *Container) { r.StopAsked = true }, false},
		"it runs":                 {"always", own, func(_ *Record, c *Container) { c.State = Running }, false},
		"so often has it started": {"on-failure:2", own, func(*Record, *Container) {}, false},
	} {
		r, ctr := restartable(t, c.policy, c.labels)
		c.change(r, ctr)
		if got := r.StartsAgain(ctr, 2); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestStopIsOver restarts the machine after a stop of the container, or of its pod.
func TestStopIsOver(t *testing.T) {
	for policy, again := range map[string]bool{"always": true, "unless-stopped": false, "on-failure": false} {
		for _, pod := range []bool{false, true} {
			r, c := restartable(t, policy, map[string]string{RunLabel: "p"})
			r.StopAsked, c.StopAsked = pod, !pod
			if err := r.StopIsOver(); err != nil {
				t.Fatal(err)
			}
			if got := r.StartsAgain(r.Container("c"), 0); got != again || r.StopAsked {
				t.Errorf("%s, pod stopped %v: starts again: %v", policy, pod, got)
			}
		}
	}
}

func TestRan(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		c    Container
		want time.Duration
	}{
		{Container{}, 0}, {Container{StartedAt: now, FinishedAt: now.Add(time.Minute)}, time.Minute},
		{Container{FinishedAt: now}, 0},
		{Container{StartedAt: now, FinishedAt: now.Add(-time.Minute)}, 0}, // a clock was set
	} {
		if got := c.c.Ran(); got != c.want {
			t.Errorf("%v, want %v", got, c.want)
		}
	}
}
