package main

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/host"
)

func TestRefuseHoles(t *testing.T) {
	all := []host.Runtime{
		{Name: "old", Path: "/x/runc", Program: "runc", Version: "1.2.7"},
		{Name: "new", Path: "/y/runc", Program: "runc", Version: "1.2.8"},
		{Name: "untried", Path: "/z/runc", Program: "runc"},
	}
	for _, name := range []string{"new", "untried", "nobody"} {
		if err := refuseHoles(all, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	err := refuseHoles(all, "old")
	if !fail.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), "/x/runc 1.2.7 (CVE-2025-31133, ") {
		t.Errorf("a runtime with holes: %v", err)
	}
}
