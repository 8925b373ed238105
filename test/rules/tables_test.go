package rules

import (
	"fmt"
	"go/ast"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
)

// shownPages are the pages that compare Berth with others, or say what was tried.
var shownPages = []string{"coming-from.md", "tools.md", "conformance.md"}

var (
	// cellEnd parts the cells of a row, of which one may hold an escaped bar.
	cellEnd = regexp.MustCompile(`(^|[^\\])\|`)
	// isATest is the name of a test, alone.
	isATest = regexp.MustCompile(`^Test[A-Za-z0-9]+$`)
	// saysHow is how a row says what was done where no test does it.
	saysHow = regexp.MustCompile(`(?i)\b(tried|ran|tests|in source|pass|passed)\b`)
	// heading begins a section.
	heading = regexp.MustCompile(`^#+ (.*)`)
)

// row is one of a table: its first cell, and all of it.
type row struct{ name, text string }

// tableRows are the rows of the tables of a page, by the page's name and the heading above. Tables of runs, which begin
// with a date, say themselves what was run.
func tableRows(name, text string) map[string][]row {
	all := map[string][]row{}
	section, in, runs := "", false, false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if h := heading.FindStringSubmatch(line); h != nil {
			section = name + ": " + h[1]
		}
		table := strings.HasPrefix(line, "|")
		switch {
		case table && !in:
			runs = firstCell(line) == "date"
		case table && !runs && !strings.HasPrefix(line, "|---"):
			all[section] = append(all[section], row{firstCell(line), line})
		}
		in = table
	}
	return all
}

func firstCell(line string) string {
	line = strings.TrimPrefix(line, "|")
	if end := cellEnd.FindStringIndex(line); end != nil {
		line = line[:end[1]-1]
	}
	return strings.TrimSpace(line)
}

// unshown compares rows with the list of what shows them, by section and first cell.
func unshown(rows map[string][]row, list string, isThere func(test string) bool) (all []string) {
	by, section := map[string]string{}, ""
	for line := range strings.Lines(list) {
		line = strings.TrimRight(line, "\n")
		name, shown, parted := strings.Cut(line, "\t")
		if s, ok := strings.CutPrefix(line, "== "); ok {
			section = s
		} else if parted {
			by[section+"\t"+name] = shown
		}
	}
	for section, of := range rows {
		for _, r := range of {
			key := section + "\t" + r.name
			shown, listed := by[key]
			delete(by, key)
			if !listed {
				all = append(all, fmt.Sprintf("%s: nothing is listed that shows %s", section, r.name))
				continue
			}
			all = append(all, showsRow(section, r, shown, isThere)...)
		}
	}
	for key := range by {
		all = append(all, "there is no such row: "+strings.ReplaceAll(key, "\t", ": "))
	}
	return all
}

// showsRow checks what is listed of one row.
func showsRow(section string, r row, shown string, isThere func(test string) bool) (all []string) {
	tests, words, _ := strings.Cut(shown, ";")
	tested := false
	for test := range strings.SplitSeq(tests, ", ") {
		switch {
		case !isATest.MatchString(test):
			words = shown
		case !isThere(test):
			all = append(all, fmt.Sprintf("%s: %s is shown by %s, which is not there", section, r.name, test))
		default:
			tested = true
		}
	}
	if tested || len(all) > 0 {
		return all
	}
	untried := strings.Contains(r.text, "| not tried |")
	if strings.HasPrefix(words, "not tried") != untried || !saysHow.MatchString(r.text) {
		all = append(all, fmt.Sprintf("%s: %s has no test, and does not say whether it was tried, and how", section, r.name))
	}
	return all
}

// TestEveryRowIsShown wants a test for each row of these tables, or a row that says how it was tried, or that it was
// not.
func TestEveryRowIsShown(t *testing.T) {
	there := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.isTest() && f.Recv == nil {
				there[f.Name.Name] = true
			}
		}
	}
	rows := map[string][]row{}
	for _, name := range shownPages {
		maps.Copy(rows, tableRows(name, page(t, name)))
	}
	list, err := os.ReadFile("testdata/tables.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range unshown(rows, string(list), func(test string) bool { return there[test] }) {
		t.Error(problem)
	}
}

// TestRowRule feeds the rule a page and lists with one mistake each.
func TestRowRule(t *testing.T) {
	const text = "# Tools\n\n| tool | how |\n|---|---|\n| `a \\| b` | works |\n| c | not tried |\n" +
		"| d | tried by hand |\n\n## Runs\n\n| date | where |\n|---|---|\n| today | here |\n"
	const right = "== p.md: Tools\n`a \\| b`\tTestA, TestB\nc\tnot tried\nd\tby hand\n"
	rows := tableRows("p.md", text)
	for name, x := range map[string]struct{ old, new, want string }{
		"right":         {"", "", ""},
		"not listed":    {"c\tnot tried\n", "", "nothing is listed that shows c"},
		"no such row":   {"d\t", "e\t", "there is no such row: p.md: Tools: e"},
		"no such test":  {"TestB", "TestC", "shown by TestC, which is not there"},
		"tried?":        {"c\tnot tried", "c\tby hand", "c has no test, and does not say"},
		"not said how":  {"TestA, TestB", "by hand", "does not say whether it was tried"},
		"was tried":     {"d\tby hand", "d\tnot tried", "d has no test"},
		"other section": {"p.md: Tools", "p.md: Runs", "nothing is listed that shows d"},
	} {
		got := strings.Join(unshown(rows, strings.Replace(right, x.old, x.new, 1),
			func(test string) bool { return test == "TestA" || test == "TestB" }), "; ")
		if x.want == "" && got != "" || !strings.Contains(got, x.want) {
			t.Errorf("%s: %q, wanted %q", name, got, x.want)
		}
	}
}
