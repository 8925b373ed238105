package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth/test/fixture"
)

// TestUnitPackages has each package tested once, the long ones first, and none that has a section of its own.
func TestUnitPackages(t *testing.T) {
	all := []string{
		"berth/cmd/berth", "berth/internal/config", "berth/internal/runtime", "berth/test/crash", "berth/test/e2e",
		"berth/test/node", "berth/test/rules",
	}
	want := []string{"berth/internal/runtime", "berth/cmd/berth", "berth/internal/config", "berth/test/node"}
	if got := unitPackages(all); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestLongestAreThere wants each package that begins first to be there: one that was renamed would begin late, and
// nobody would see.
func TestLongestAreThere(t *testing.T) {
	for i, name := range longest {
		if _, err := os.Stat(filepath.Join(fixture.Repo(), name)); err != nil {
			t.Error(err)
		}
		if slices.Contains(longest[:i], name) || ofAnother("berth/"+name) {
			t.Errorf("%s is listed twice, or belongs to another section", name)
		}
	}
}
