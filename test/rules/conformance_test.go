package rules

import (
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"berth/test/fixture"
)

// conformance is what docs/conformance-fields.md is compared with.
type conformance struct {
	rpcs, requests, answers []string
	tests                   map[string]shown // by name
}

// shown is the source of a test: its function, and its file with that.
type shown struct{ function, file string }

// table is one section of the page: how many cells a row has, and what needs one.
type table struct {
	heading string
	cells   int
	want    []string
}

var (
	// silent rows say that Berth does nothing with a field, or leaves it empty.
	silent = regexp.MustCompile(`^(Unimplemented|ignored|not (used|needed|done|read|filled))`)
	// refusing rows say that a request fails.
	refusing = regexp.MustCompile(`\b(refused|InvalidArgument|NotFound|FailedPrecondition|DeadlineExceeded)\b`)
	// refusal is how a test checks an error.
	refusal = regexp.MustCompile(`wantCode|codes\.|err == nil|an error`)
	// anyField begins a row about a field or an RPC.
	anyField = regexp.MustCompile("^\\| `([A-Za-z0-9_.]+)` \\|")
)

// standardWords may be the text of several fields of one message. Any other text says what that field does.
var standardWords = []string{
	"required", "as its fields", "see its field", "see its fields", "as given", "returned as they are", "Unimplemented",
}

// problems are what is wrong with the page.
func (c conformance) problems(page string) (all []string) {
	for _, t := range []table{
		{"## RPCs", 5, c.rpcs}, {"## Fields of requests", 5, c.requests}, {"## Fields of answers", 6, c.answers},
	} {
		_, section, found := strings.Cut("\n"+page, "\n"+t.heading+"\n")
		if !found {
			all = append(all, "there is no section "+t.heading)
		}
		section, _, _ = strings.Cut(section, "\n## ")
		all = append(all, c.section(t, section)...)
	}
	return all
}

func (c conformance) section(t table, text string) (all []string) {
	rows, texts := map[string]bool{}, map[string]string{}
	for line := range strings.Lines(text) {
		row := anyField.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		name := row[1]
		if rows[name] || !slices.Contains(t.want, name) {
			all = append(all, name+" has a row that is one too many")
		}
		rows[name] = true
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i, cell := range cells {
			cells[i] = strings.TrimSpace(cell)
		}
		if len(cells) != t.cells || slices.Contains(cells, "") || slices.Contains(cells, "–") {
			all = append(all, fmt.Sprintf("%s: %d cells are to be filled, in %q", name, t.cells, strings.TrimSpace(line)))
			continue
		}
		does := cells[1]
		all = append(all, c.tested(name, does, cells[t.cells-1])...)
		message, _, isField := strings.Cut(name, ".")
		if other := texts[message+"\n"+does]; isField && other != "" && !slices.Contains(standardWords, does) {
			all = append(all, fmt.Sprintf("%s has the words of %s: %q", name, other, does))
		}
		texts[message+"\n"+does] = name
	}
	for _, name := range t.want {
		if !rows[name] {
			all = append(all, name+" has no row")
		}
	}
	return all
}

// tested checks the tests that a row names against what it says.
func (c conformance) tested(name, does, by string) (all []string) {
	_, field, isField := strings.Cut(name, ".")
	if !isField {
		field = name
	}
	mention := regexp.MustCompile(`(?i)\b(` + field + `|` + strings.ReplaceAll(field, "_", "") + `)\b`)
	mentioned, refused := false, false
	for test := range strings.SplitSeq(by, ", ") {
		source, ok := c.tests[test]
		if !ok {
			all = append(all, fmt.Sprintf("%s is shown by %s, which is not there", name, test))
		}
		mentioned = mentioned || mention.MatchString(source.file)
		refused = refused || refusal.MatchString(source.function)
	}
	if silent.MatchString(does) && !mentioned {
		all = append(all, fmt.Sprintf("%s: %q is shown by no test that names the field", name, does))
	}
	if refusing.MatchString(does) && !refused {
		all = append(all, fmt.Sprintf("%s: %q is shown by no test in which anything is refused", name, does))
	}
	return all
}

// TestEveryFieldHasATest compares the tables of docs/conformance-fields.md with the API and with the tests: each RPC
// and each field of requests and answers has a row of its own words, and tests that there are.
func TestEveryFieldHasATest(t *testing.T) {
	c := conformance{
		rpcs:     fixture.RPCs(),
		requests: slices.Sorted(maps.Keys(fixture.RequestFields())),
		answers:  slices.Sorted(maps.Keys(fixture.AnswerFields())),
		tests:    tests(t),
	}
	for _, problem := range c.problems(page(t, "conformance-fields.md")) {
		t.Error(problem)
	}
}

// showing are the packages whose tests show what a kubelet gets.
var showing = map[string]bool{"test/e2e": true, "test/registry": true, "internal/spec": true, "internal/cdi": true}

// tests are those of these packages. What a golden test reads is part of its file.
func tests(t *testing.T) map[string]shown {
	t.Helper()
	all := map[string]shown{}
	for _, s := range sources(t) {
		if !showing[s.pkg()] || !s.isTest() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(fixture.Repo(), s.path))
		if err != nil {
			t.Fatal(err)
		}
		text, file := string(data), string(data)
		goldens, _ := filepath.Glob(filepath.Join(fixture.Repo(), s.pkg(), "testdata/*/*"))
		for _, golden := range goldens {
			if data, err = os.ReadFile(golden); err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(s.path, "golden_test.go") {
				file += string(data)
			}
		}
		base := s.file.FileStart
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				all[f.Name.Name] = shown{text[f.Pos()-base : f.End()-base], file}
			}
		}
	}
	return all
}

// TestConformanceRule feeds the rule pages with one mistake each.
func TestConformanceRule(t *testing.T) {
	c := conformance{
		rpcs: []string{"Stop"}, requests: []string{"StopRequest.stop_id", "StopRequest.note"},
		answers: []string{"StopResponse.left_over"},
		tests: map[string]shown{
			"TestStop": {"r.wantCode(err)", "StopId r.wantCode(err)"},
			"TestNote": {"", "Note: 1"}, "TestLeft": {"", "req.LeftOver"},
		},
	}
	const right = "# Page\n\n## RPCs\n\n| RPC | Berth |\n|---|---|\n| `Stop` | stops | yes | yes | TestStop |\n" +
		"\n## Fields of requests\n\n" +
		"| `StopRequest.stop_id` | refused when it is empty | read | read | TestStop |\n" +
		"| `StopRequest.note` | not used | read | not read | TestStop, TestNote |\n\n## Fields of answers\n\nWords.\n\n" +
		"| `StopResponse.left_over` | not filled | a number | the same | the same | TestLeft |\n"
	for name, x := range map[string]struct{ old, new, want string }{
		"right":            {"", "", ""},
		"no row":           {"| `Stop` | stops | yes | yes | TestStop |\n", "", "Stop has no row"},
		"no field":         {"| `StopRequest.note` ", "| StopRequest.note ", "StopRequest.note has no row"},
		"no answer":        {"| `StopResponse.left_over` ", "| `StopResponse.left` ", "StopResponse.left_over has no row"},
		"too many":         {"`StopRequest.note`", "`StopRequest.stop_id`", "stop_id has a row that is one too many"},
		"another section":  {"## Fields of answers", "## Answers", "there is no section ## Fields of answers"},
		"a cell too few":   {"| not filled | a number ", "| not filled ", "6 cells are to be filled"},
		"an empty cell":    {"| a number |", "| |", "6 cells are to be filled"},
		"no test":          {"| TestLeft |", "| – |", "6 cells are to be filled"},
		"another test":     {"| TestLeft |", "| TestRight |", "TestRight, which is not there"},
		"one of two tests": {"TestStop, TestNote", "TestNote, TestNothing", "TestNothing, which is not there"},
		"ignored, unshown": {"TestStop, TestNote", "TestStop", `"not used" is shown by no test that names the field`},
		"empty, unshown":   {"| TestLeft |", "| TestStop |", `"not filled" is shown by no test that names the field`},
		"refused, unshown": {"read | read | TestStop |", "read | read | TestNote |", "in which anything is refused"},
		"code, unshown":    {"| not filled |", "| a number; NotFound without one |", "in which anything is refused"},
		"pasted":           {"| not used |", "| refused when it is empty |", "note has the words of StopRequest.stop_id"},
		"unimplemented":    {"| not filled |", "| Unimplemented |", ""},
	} {
		page := strings.Replace(right, x.old, x.new, 1)
		got := strings.Join(c.problems(page), "; ")
		if x.want == "" && got != "" || !strings.Contains(got, x.want) {
			t.Errorf("%s: %q, wanted %q", name, got, x.want)
		}
	}
	same := conformance{requests: []string{"A.a", "A.b", "B.a"}, tests: map[string]shown{"TestA": {}}}
	const rows = "## RPCs\n\n## Fields of requests\n\n| `A.a` | W | r | r | TestA |\n| `A.b` | W | r | r | TestA |\n" +
		"| `B.a` | W | r | r | TestA |\n\n## Fields of answers\n"
	for words, want := range map[string]int{"required": 0, "an id": 1} {
		if got := same.problems(strings.ReplaceAll(rows, "W", words)); len(got) != want {
			t.Errorf("%q three times, in two messages: %q", words, got)
		}
	}
}
