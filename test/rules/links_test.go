package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"berth/test/fixture"
)

var (
	link        = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pageHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced      = regexp.MustCompile("(?s)```.*?```")
	noAnchor    = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	testName    = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]*)`")
)

// documents are the pages of the repository: their text, without examples in fences, by their path from its root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md", "*/README.md", "*/*/README.md"} {
		found, err := filepath.Glob(filepath.Join(fixture.Repo(), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			rel, err := filepath.Rel(fixture.Repo(), path)
			if err != nil {
				t.Fatal(err)
			}
			texts[rel] = fenced.ReplaceAllString(string(text), "")
		}
	}
	if len(texts) < 50 {
		t.Fatalf("only %d pages were found", len(texts))
	}
	return texts
}

// anchors are the fragments by which links reach the headings of a page.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, h := range pageHeading.FindAllStringSubmatch(text, -1) {
		words := noAnchor.ReplaceAllString(link.ReplaceAllString(h[1], ""), "")
		all[strings.ReplaceAll(strings.ToLower(words), " ", "-")] = true
	}
	return all
}

// TestLinksLeadSomewhere checks that each link of a page to a file of the repository finds it, and the heading that it
// names.
func TestLinksLeadSomewhere(t *testing.T) {
	pages := documents(t)
	for page, text := range pages {
		for _, l := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(l[1], ":") {
				continue
			}
			path, anchor, _ := strings.Cut(l[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(filepath.Join(fixture.Repo(), target)); err != nil {
				t.Errorf("%s links to %s, which is not there", page, l[1])
			} else if other, ok := pages[target]; ok && anchor != "" && !anchors(other)[anchor] {
				t.Errorf("%s links to %s, and no heading there has that anchor", page, l[1])
			}
		}
	}
}

// TestPagesNameTestsThatExist checks that each test that a page names is one of the repository's. Decision notes tell
// of their day.
func TestPagesNameTestsThatExist(t *testing.T) {
	known := map[string]bool{}
	for _, s := range sources(t) {
		for _, name := range declared(s.file) {
			known[name] = true
		}
	}
	for page, text := range documents(t) {
		if strings.HasPrefix(page, "docs/adr/") {
			continue
		}
		named := testName.FindAllStringSubmatch(text, -1)
		if page == "docs/security.md" && len(named) < 50 { // each attack has one
			t.Errorf("docs/security.md names %d tests", len(named))
		}
		for _, n := range named {
			if !known[n[1]] {
				t.Errorf("%s names %s, which is no test", page, n[1])
			}
		}
	}
}
