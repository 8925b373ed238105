package rules

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"berth/test/fixture"
)

// page reads a page of docs/.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(fixture.Repo(), "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDecisionNotesHaveOneForm checks that the title of each decision note has the number of its file, and that the
// date stands below it.
func TestDecisionNotesHaveOneForm(t *testing.T) {
	notes, err := filepath.Glob(filepath.Join(fixture.Repo(), "docs/adr/[0-9]*.md"))
	if err != nil || len(notes) == 0 {
		t.Fatalf("the notes: %v, %v", notes, err)
	}
	for _, note := range notes {
		name := filepath.Base(note)
		number := strings.TrimLeft(name[:4], "0")
		form := regexp.MustCompile(`^# ` + number + `\. [^\n]*[^\n)]\n\n20\d\d-\d\d-\d\d\n\n`)
		if text := page(t, "adr/"+name); !form.MatchString(text) {
			t.Errorf("docs/adr/%s does not begin with \"# %s. Title\", an empty line and its date", name, number)
		}
	}
}

// TestArchitectureNamesEveryPackage checks that each package below internal/ has a row in docs/architecture.md, and
// that each row is about one that exists.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	want, text := map[string]bool{}, page(t, "architecture.md")
	for _, s := range sources(t) {
		if strings.HasPrefix(s.pkg(), "internal/") {
			want[s.pkg()] = true
		}
	}
	rows := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(internal/[a-z0-9/]+)` \\|").FindAllStringSubmatch(text, -1) {
		if rows[row[1]] || !want[row[1]] {
			t.Errorf("the row of %s is one too many", row[1])
		}
		rows[row[1]] = true
	}
	for pkg := range want {
		if !rows[pkg] {
			t.Errorf("%s has no row in docs/architecture.md", pkg)
		}
	}
}

// TestIndexNamesEveryPage checks that docs/README.md names each page of docs/ once.
func TestIndexNamesEveryPage(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(fixture.Repo(), "docs/*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("the pages: %v, %v", pages, err)
	}
	index := page(t, "README.md")
	for _, p := range pages {
		name := filepath.Base(p)
		if n := strings.Count(index, "]("+name+")"); name != "README.md" && n != 1 {
			t.Errorf("docs/README.md names %s %d times", name, n)
		}
	}
}

// TestTracesNameWhatExists checks that each name of a function that docs/request-lifecycle.md has in bold, or in its
// table of functions, is one of the code, and that the table has as many as the sentence above it says.
func TestTracesNameWhatExists(t *testing.T) {
	known := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && !s.isTest() {
				known[f.Name.Name] = true
			}
		}
	}
	bold := regexp.MustCompile("\\*\\*`([A-Za-z.]+)`\\*\\*")
	names := bold.FindAllStringSubmatch(page(t, "request-lifecycle.md"), -1)
	if len(names) < 20 {
		t.Fatalf("the page has %d names", len(names))
	}
	for _, n := range names {
		if last := n[1][strings.LastIndex(n[1], ".")+1:]; !known[last] {
			t.Errorf("docs/request-lifecycle.md names %s, which is no function", n[1])
		}
	}
	const head = "Fifteen functions lie between the RPC CreateContainer and the fork of the OCI runtime, " +
		"in two processes:\n\n| where | functions |\n|---|---|\n"
	_, rest, ok := strings.Cut(page(t, "request-lifecycle.md"), head)
	rows, _, _ := strings.Cut(rest, "\n\n")
	if !ok {
		t.Fatal("docs/request-lifecycle.md has no table of the functions from CreateContainer to the fork")
	}
	path := regexp.MustCompile("`(?:[A-Za-z]+\\.)?([A-Za-z]+)`").FindAllStringSubmatch(functionsOf(rows), -1)
	if len(path) != 15 {
		t.Errorf("the table of the functions from CreateContainer to the fork has %d", len(path))
	}
	for _, n := range path {
		if !known[n[1]] {
			t.Errorf("docs/request-lifecycle.md names %s, which is no function", n[0])
		}
	}
}

// functionsOf is the second column of the rows of a table.
func functionsOf(rows string) string {
	var b strings.Builder
	for row := range strings.Lines(rows) {
		if cells := strings.Split(row, "|"); len(cells) > 2 {
			b.WriteString(cells[2])
		}
	}
	return b.String()
}
