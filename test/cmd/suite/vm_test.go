package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"berth/test/fixture"
)

// TestSubset wants each name of the machine's tests to be of a test: one that was renamed would run no more, and nobody
// would see.
func TestSubset(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(fixture.Repo(), "test/e2e/*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	var tests []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(t `).FindAllStringSubmatch(string(text), -1) {
			tests = append(tests, found[1])
		}
	}
	for _, name := range slices.Concat(vmSubset, vmKernel, selinuxSubset) {
		is, found := regexp.MustCompile(pattern([]string{name})), false
		for _, test := range tests {
			found = found || is.MatchString(test)
		}
		if !found {
			t.Errorf("no test of test/e2e is called %s", name)
		}
	}
}

func TestChosen(t *testing.T) {
	var got []string
	for _, c := range chosen(vmNode, "^TestQuickStart$") {
		if c.Run != "^TestQuickStart$" || c.Down || c.Until != "" {
			t.Errorf("chosen as %+v", c)
		}
		got = append(got, c.Package)
	}
	if want := []string{"test/power", "test/service"}; !slices.Equal(got, want) {
		t.Errorf("of the node's tests %v were chosen, want %v", got, want)
	}
}
