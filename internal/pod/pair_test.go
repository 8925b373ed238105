package pod

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// TestRootAndStateBelongTogether opens the pods of a node with another root, and with another state directory: that is
// refused while pods of this boot are there, which it would end or lose.
func TestRootAndStateBelongTogether(t *testing.T) {
	b := open(t)
	id, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	other := func(change func(*Config)) error {
		cfg := b.cfg
		change(&cfg)
		s, err := Open(cfg)
		if err == nil {
			s.Close()
		}
		return err
	}
	dir := t.TempDir()
	root, state := func(c *Config) { c.Root = dir + "/r" }, func(c *Config) { c.State = dir + "/s" }
	for name, change := range map[string]func(*Config){"root": root, "state": state} {
		err := other(change)
		if !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), "1 pods of it") {
			t.Errorf("another %s: %v", name, err)
		}
	}
	b.reopen(t)
	if err := b.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){"root": root, "state": state} {
		if err := other(change); err != nil {
			t.Errorf("another %s, without pods: %v", name, err)
		}
		b.reopen(t) // and back
	}
}
