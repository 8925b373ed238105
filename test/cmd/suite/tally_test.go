package main

import (
	"regexp"
	"strings"
	"testing"
)

func TestCounts(t *testing.T) {
	const pkg = `"Package":"p"`
	line := func(action, test, output string) string {
		return `{"Action":"` + action + `",` + pkg + `,"Test":"` + test + `","Output":"` + output + `"}` + "\n"
	}
	for _, c := range []struct {
		name, in string
		passed   int
		failed   []string
		out      string
	}{
		{"parents do not count", line("pass", "A/x", "") + line("pass", "A/y", "") + line("pass", "A", "") + line("pass", "",
			""), 2, nil, "ok   p: 2"},
		{"a failing subtest counts once",
			line("output", "A/x", "boom") + line("fail", "A/x", "") + line("fail", "A", "") + line("fail", "", ""),
			0, []string{"p A/x"}, "boom"},
		{"a parent that fails by itself counts",
			line("pass", "A/x", "") + line("output", "A", "late") + line("fail", "A", "") + line("fail", "", ""),
			1, []string{"p A"}, "late"},
		{"a package that fails after its tests counts",
			line("pass", "A", "") + line("output", "", "leak") + line("fail", "", ""),
			1, []string{"p"}, "leak"},
		{"a test that never ended counts", line("output", "A", "panic") + line("fail", "", ""), 0, []string{"p A"}, "panic"},
		{"of a test that never ended is told what the process said",
			line("output", "A", "x") + line("output", "", "timed out") + line("fail", "", ""), 0, []string{"p A"}, "timed out"},
		{"a test that never got its turn does not",
			line("output", "A", "panic") + line("output", "B", "x") + line("output", "B/c", "x") + line("pause", "B/c", "") +
				line("fail", "", ""), 0, []string{"p A"}, "panic"},
		{"a package that comes twice counts anew",
			line("pass", "A", "") + line("pass", "", "") + line("pass", "B", "") + line("pass", "", ""), 2, nil, "ok   p: 1"},
		{"a skip says why", line("output", "A", "    a_test.go:3: needs root\\n") + line("skip", "A", "") + line("pass", "",
			""), 0, nil, "skip p A: needs root"},
		{"a build failure is shown", `{"ImportPath":"p [p.test]","Action":"build-output","Output":"syntax error"}` + "\n" +
			`{"Action":"fail",` + pkg + `,"FailedBuild":"p [p.test]"}` + "\n", 0, []string{"p"}, "syntax error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			tally := newTally(&out)
			tally.read(strings.NewReader(c.in))
			if tally.passed != c.passed || strings.Join(tally.failures, ",") != strings.Join(c.failed, ",") {
				t.Errorf("%d passed, failures %v", tally.passed, tally.failures)
			}
			if !strings.Contains(out.String(), c.out) {
				t.Errorf("output %q lacks %q", out.String(), c.out)
			}
		})
	}
}

func TestLastLine(t *testing.T) {
	var out strings.Builder
	tally := newTally(&out)
	tally.pass("a")
	tally.fail("b", "why")
	if code := tally.finish(); code != 1 || !strings.HasSuffix(out.String(), "\n1 passed, 1 failed\n") {
		t.Errorf("exit code %d, output %q", code, out.String())
	}
	if code := newTally(&out).finish(); code != 1 {
		t.Errorf("a run without any test ended with %d", code)
	}
}

// TestSectionsAreTimed has the end of a run name each section with its length, in the order in which they ran.
func TestSectionsAreTimed(t *testing.T) {
	var out strings.Builder
	results := newTally(&out)
	for _, name := range []string{"one", "two"} {
		results.section(section{name, "a section", func(t *tally) { t.pass(name) }})
	}
	took := regexp.MustCompile(`\nTook \S+: one \S+, two \S+\.\n`)
	if code := results.finish(); code != 0 || !took.MatchString(out.String()) {
		t.Errorf("code %d, %s", code, out.String())
	}
}
