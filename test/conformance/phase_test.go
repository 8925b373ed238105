package conformance

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"berth/test/fixture"
)

// TestSelectionIsExact has names choose their own specs, and none whose names they begin or end.
func TestSelectionIsExact(t *testing.T) {
	p := phase{gates: "A=true", specs: []string{"[sig-node] Pods (a|b) run {A=true}"}}
	flags := p.selection()
	expression, ok := strings.CutPrefix(flags[0], "--focus=")
	if !ok || len(flags) != 1 {
		t.Fatalf("flags %q", flags)
	}
	focus := regexp.MustCompile(expression)
	for text, want := range map[string]bool{
		"E2eNode Suite [sig-node] Pods (a|b) run":       true,
		"E2eNode Suite [sig-node] Pods  (a|b) run":      true,
		"E2eNode Suite [sig-node] Pods (a|b) run twice": false,
		"E2eNode Suite [sig-node] Pods a run":           false,
	} {
		if got := focus.MatchString(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestSmokeLeavesOutWhatIsKnown has the smoke set without a spec that is known not to pass.
func TestSmokeLeavesOutWhatIsKnown(t *testing.T) {
	all := smoke(smokeText, 10, nil)
	last := all[1].specs[len(all[1].specs)-1]
	if !strings.HasSuffix(last, all[1].mark()) {
		t.Fatalf("%q names no feature gate", last)
	}
	some := smoke(smokeText, 10, map[string]Entry{last: {}})
	if len(some[0].specs) != len(all[0].specs) || len(some[1].specs) != len(all[1].specs)-1 {
		t.Errorf("of %d and %d specs %d and %d", len(all[0].specs), len(all[1].specs), len(some[0].specs), len(some[1].specs))
	}
}

// TestVersionIsTheModules compares the version that is told with the one that is built.
func TestVersionIsTheModules(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(fixture.Repo(), "hack/conformance/go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\tk8s.io/kubernetes "+Version+"\n") &&
		!strings.Contains(string(text), "require k8s.io/kubernetes "+Version+"\n") {
		t.Errorf("hack/conformance/go.mod requires another Kubernetes than %s", Version)
	}
}

func TestAddRow(t *testing.T) {
	page := "# Page\n\n" + head + "\n|---|---|\n| old |\n\nMore.\n"
	got, err := addRow(page, "| new |")
	if want := "# Page\n\n" + head + "\n|---|---|\n| new |\n| old |\n\nMore.\n"; err != nil || got != want {
		t.Errorf("%v: %q", err, got)
	}
	if _, err := addRow("# Page\n", "| new |"); err == nil {
		t.Error("a page without the table took a row")
	}
}

// TestPageHasTheTable has the page that runs are put into be one that takes them.
func TestPageHasTheTable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(fixture.Repo(), "docs/conformance.md"))
	if err == nil {
		_, err = addRow(string(text), "| a run |")
	}
	if err != nil {
		t.Error(err)
	}
}
