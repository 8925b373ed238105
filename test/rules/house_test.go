package rules

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/fixture"
)

// mostHelpers is how many packages of test/ a file of an end-to-end test may import: so many a newcomer has to know.
const mostHelpers = 3

// TestFirstTestNeedsFewHelpers counts the packages of test/ that the files of test/e2e import.
func TestFirstTestNeedsFewHelpers(t *testing.T) {
	for _, s := range sources(t) {
		if s.pkg() != "test/e2e" {
			continue
		}
		helpers := 0
		for _, i := range s.file.Imports {
			if strings.HasPrefix(i.Path.Value, `"berth/test/`) {
				helpers++
			}
		}
		if helpers > mostHelpers {
			t.Errorf("%s imports %d packages of test/, and %d are enough", s.path, helpers, mostHelpers)
		}
	}
}

// TestFirstTestIsShown wants docs/changing.md to show test/e2e/first_test.go as it is.
func TestFirstTestIsShown(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(fixture.Repo(), "test/e2e/first_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, shown, found := strings.Cut(string(text), "\n)\n\n") // the imports
	if !found {
		t.Fatal("test/e2e/first_test.go has no imports")
	}
	var indented strings.Builder
	for line := range strings.Lines(strings.ReplaceAll(shown, "\t", "    ")) {
		if line != "\n" {
			line = "    " + line
		}
		indented.WriteString(line)
	}
	if !strings.Contains(page(t, "changing.md"), "\n\n"+indented.String()+"\n") {
		t.Errorf("docs/changing.md does not show test/e2e/first_test.go; it would be\n%s", indented.String())
	}
}

// TestHouseOfTestsIsDescribed wants docs/changing.md to name each directory of test/.
func TestHouseOfTestsIsDescribed(t *testing.T) {
	found := map[string]bool{}
	for _, s := range sources(t) {
		if rest, ok := strings.CutPrefix(s.pkg(), "test/"); ok {
			dir, _, _ := strings.Cut(rest, "/")
			found[dir] = true
		}
	}
	_, section, _ := strings.Cut(page(t, "changing.md"), "\n## Tests\n")
	table, _, _ := strings.Cut(section, "\n###")
	for dir := range found {
		if !strings.Contains(table, "`"+dir+"`") {
			t.Errorf("the section Tests of docs/changing.md does not name test/%s", dir)
		}
	}
}
