package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/selinux"
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
