package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/admin"
	"berth/internal/selinux"
	"berth/test/timeouts"
)

// A copy that cannot be made leaves the one of an earlier start, and nothing half made.
func TestLendFallsBack(t *testing.T) {
	dir := t.TempDir()
	monitor, path := filepath.Join(dir, "monitor"), filepath.Join(dir, "pod-init")
	if err := os.WriteFile(monitor, []byte("one"), 0o755); err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	fails, works := func(string) error { return full }, func(string) error { return nil }
	for _, c := range []struct {
		label func(string) error
		want  string
		err   error
	}{{fails, "", full}, {works, path, nil}, {fails, path, full}} {
		if got, err := lend(monitor, path, c.label); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("got %q, %v", got, err)
		}
		if _, err := os.Stat(path + ".next"); !os.IsNotExist(err) {
			t.Errorf("a part is left: %v", err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "one" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestLabelsComeLater wants containers to get labels as soon as the policy has some, without a restart, and what is
// lent to inits made once.
func TestLabelsComeLater(t *testing.T) {
	lent, none := 0, errors.New("the policy does not know containers")
	answer := none
	c := confinement{labels: &labels{
		open: func() (*selinux.Node, error) { return &selinux.Node{}, answer },
		lend: func(*selinux.Node) string { lent++; return "/state/pod-init" },
	}}
	if _, err := c.labels.get(); err == nil { // as at the start
		t.Error("labels of a policy that has none")
	}
	if got := c.labels.forNew(); got != nil || c.labels.program() != "" {
		t.Errorf("%v, %q", got, c.labels.program())
	}
	if p := c.problems(); len(p) != 1 || !strings.Contains(p[0].Message, "without SELinux labels: the policy does not") {
		t.Errorf("problems %+v", p)
	}
	answer = nil
	if c.labels.forNew() == nil || c.labels.program() != "/state/pod-init" || len(c.problems()) > 0 {
		t.Errorf("%q, %+v", c.labels.program(), c.problems())
	}
	answer = none // what pods have once they keep
	if c.labels.forNew() == nil || lent != 1 {
		t.Errorf("lent %d times", lent)
	}
	if m := (&confinement{}).appArmor(); m.On || m.Problem != "" {
		t.Errorf("a kernel without AppArmor: %+v", m)
	}
}

// TestStatusWaitsForNoPolicy wants the status, and the init of pods, told while the policy or the disk of its files is
// asked and does not answer.
func TestStatusWaitsForNoPolicy(t *testing.T) {
	answer, asked := make(chan error, 1), make(chan struct{}, 2)
	c := confinement{labels: &labels{
		open: func() (*selinux.Node, error) { asked <- struct{}{}; return &selinux.Node{}, <-answer },
		lend: func(*selinux.Node) string { return "/state/pod-init" },
	}}
	answer <- errors.New("the policy does not know containers")
	if _, err := c.labels.get(); err == nil {
		t.Error("labels of a policy that has none")
	}
	<-asked
	var pods sync.WaitGroup
	for range 2 {
		pods.Go(func() {
			if c.labels.forNew() == nil {
				t.Error("a pod without labels")
			}
		})
	}
	<-asked
	told := make(chan []admin.Problem, 1)
	go func() { _ = c.labels.program(); told <- c.problems() }()
	select {
	case p := <-told:
		if len(p) != 1 || !strings.Contains(p[0].Message, "the policy does not know containers") {
			t.Errorf("problems %+v", p)
		}
	case <-time.After(timeouts.For(10 * time.Second)):
		t.Error("the status waits for the policy")
	}
	close(answer)
	if pods.Wait(); len(asked) > 0 || len(c.problems()) > 0 {
		t.Errorf("asked %d times more, %+v", len(asked), c.problems())
	}
}
