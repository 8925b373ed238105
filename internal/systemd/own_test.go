package systemd

import (
	"strings"
	"testing"

	"berth/internal/cgroup"
)

// TestFreeUnitByHand takes the controllers of no group where systemd has not started the process.
func TestFreeUnitByHand(t *testing.T) {
	mount := cgroup.Unified()
	if mount == "" {
		t.Skip("this machine has no cgroup2 hierarchy")
	}
	if err := FreeUnit(mount); err == nil || !strings.Contains(err.Error(), "no command of a unit with Delegate=yes") {
		t.Error(err)
	}
}
