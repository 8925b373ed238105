package conformance

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/test/conformance/ginkgo"
	"berth/test/node"
)

func parse(t *testing.T, text string) List {
	t.Helper()
	list, err := ParseList(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// reportOf is what a suite reports of specs, each given as STATE NAME. One that is filtered out is skipped without a
// word; what is called before runs before the suite.
func reportOf(t *testing.T, specs ...string) []ginkgo.Spec {
	t.Helper()
	var all []map[string]any
	for _, spec := range specs {
		state, name, _ := strings.Cut(spec, " ")
		s := map[string]any{"LeafNodeType": "It", "LeafNodeText": name, "State": state}
		switch {
		case state == "filtered":
			s["State"] = "skipped"
		case state == "before":
			s["LeafNodeType"], s["LeafNodeText"], s["State"] = "BeforeSuite", "before", name
		case state != "passed":
			s["Failure"] = map[string]any{"Message": "because"}
		}
		all = append(all, s)
	}
	text, err := json.Marshal([]map[string]any{{"SpecReports": all}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	report, err := ginkgo.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return report.Specs
}

// TestCompareIsExact plays each way in which a run and the list can disagree.
func TestCompareIsExact(t *testing.T) {
	const list = "fails: the kernel has none\n\tdisk\n" +
		"skips: it wants two processors\n\ttwo\n" +
		"fails with crun: crun is old\n\told\n"
	asListed := []string{"passed one", "failed disk", "skipped two", "passed old"}
	for _, c := range []struct {
		name   string
		ran    []string
		passed int
		want   []string // of each difference, a part
	}{
		{"as listed", asListed, 2, nil},
		{"a spec fails anew", append(slices.Clone(asListed), "failed new"), 2, []string{"new fails (failed"}},
		{"and one is interrupted", append(slices.Clone(asListed), "interrupted new"), 2, []string{"new fails (interrupted"}},
		{"and one takes too long", append(slices.Clone(asListed), "timedout new"), 2, []string{"new fails (timedout"}},
		{"a spec skips itself anew", append(slices.Clone(asListed), "skipped new"), 2, []string{"new skips (skipped"}},
		{"one that failed passes", []string{"passed disk", "skipped two", "passed old"}, 1,
			[]string{"disk passes, and is on the list"}},
		{"one that skipped itself passes", []string{"failed disk", "passed two", "passed old"}, 1,
			[]string{"two passes, and is on the list"}},
		{"one that skipped itself fails", []string{"failed disk", "failed two", "passed old"}, 1,
			[]string{"two fails, and not as the list says"}},
		{"one that failed skips itself", []string{"skipped disk", "skipped two", "passed old"}, 1,
			[]string{"disk skips, and not as the list says"}},
		{"a listed one does not run", []string{"failed disk", "passed old"}, 1, []string{"two did not run"}},
		{"one was filtered out", []string{"failed disk", "filtered two", "passed old"}, 1, []string{"two did not run"}},
		{"one that is known of another runtime", []string{"failed disk", "skipped two", "failed old"}, 0,
			[]string{"old fails (failed"}},
		{"nothing ran", nil, 0, []string{"disk did not run", "two did not run"}},
		{"what runs before the suite fails", append(slices.Clone(asListed), "before failed"), 2,
			[]string{"before fails (failed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := Expectation{Known: parse(t, list), Runtime: "runc", Whole: true}
			o := e.Compare(reportOf(t, c.ran...))
			if len(o.Passed) != c.passed || len(o.Differences) != len(c.want) {
				t.Fatalf("%d passed, differences %q", len(o.Passed), o.Differences)
			}
			for i, part := range c.want {
				if got := o.Differences[i].Spec + " " + o.Differences[i].What; !strings.Contains(got, part) {
					t.Errorf("difference %q, want %q", got, part)
				}
			}
		})
	}
}

// TestCompareOfSome has a run of some specs want these, and no others of the list.
func TestCompareOfSome(t *testing.T) {
	known := parse(t, "fails: the kernel has none\n\tdisk\n")
	e := Expectation{Known: known, Runtime: "crun", Specs: []string{"one", "two"}}
	if o := e.Compare(reportOf(t, "passed one", "passed two")); len(o.Passed) != 2 || len(o.Differences) != 0 {
		t.Errorf("%+v", o)
	}
	o := e.Compare(reportOf(t, "passed one"))
	if len(o.Passed) != 1 || len(o.Differences) != 1 || o.Differences[0].Spec != "two" {
		t.Errorf("%+v", o)
	}
}

// TestListOfARuntime has an entry of one runtime count with that one alone.
func TestListOfARuntime(t *testing.T) {
	e := Expectation{Known: parse(t, "fails with crun: crun is old\n\told\n"), Runtime: "crun", Whole: true}
	if o := e.Compare(reportOf(t, "failed old")); len(o.Known) != 1 || len(o.Differences) != 0 {
		t.Errorf("with crun: %+v", o)
	}
	e.Runtime = "runc"
	if o := e.Compare(nil); len(o.Differences) != 0 {
		t.Errorf("with runc: %+v", o)
	}
}

// TestListOfASite has an entry of one site count on that one alone, and with both a runtime and a site on that of them.
func TestListOfASite(t *testing.T) {
	known := parse(t, "fails on host: no systemd\n\tunit\nskips with crun on vm: crun is new\n\tnew\n")
	for _, c := range []struct {
		site, runtime string
		ran           []string
		known         int
	}{
		{Host, "runc", []string{"failed unit", "passed new"}, 1},
		{Host, "crun", []string{"failed unit", "passed new"}, 1},
		{VM, "runc", []string{"passed unit", "passed new"}, 0},
		{VM, "crun", []string{"passed unit", "skipped new"}, 1},
	} {
		e := Expectation{Known: known, Runtime: c.runtime, Site: c.site, Whole: true}
		if o := e.Compare(reportOf(t, c.ran...)); len(o.Known) != c.known || len(o.Differences) != 0 {
			t.Errorf("%s with %s: %+v", c.site, c.runtime, o)
		}
		e.Site = map[string]string{Host: VM, VM: Host}[c.site]
		if o := e.Compare(reportOf(t, c.ran...)); len(o.Differences) == 0 {
			t.Errorf("what is true on %s with %s is true elsewhere", c.site, c.runtime)
		}
	}
}

func TestParseListRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"\tspec\n":                               "line 1: a spec without a reason",
		"fails:\n\tspec\n":                       "gives no reason",
		"fails: \n\tspec\n":                      "gives no reason",
		"sleeps: why\n\tspec\n":                  "a spec fails or skips",
		"fails on disk: why\n\tspec\n":           "begins neither",
		"fails on host on vm: why\n\tspec\n":     "begins neither",
		"fails with a with b: why\n\tspec\n":     "begins neither",
		"fails with: why\n\tspec\n":              "begins neither",
		"fails on vm: a\n\ts\nskips: b\n\ts":     "line 4: s is on the list already",
		"# no\nspec without a tab\n":             "line 2",
		"fails: a\n\ts\nskips: b\n\ts":           "line 4: s is on the list already",
		"fails with crun: a\n\ts\n\ts":           "on the list already",
		"fails: a\n\ts\nfails with crun: b\n\ts": "on the list already",
	} {
		if _, err := ParseList(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	const two = "fails with crun: a\n\ts\nskips with runc: b\n\ts\n"
	second := Entry{Spec: "s", Verdict: Skips, Reason: "b", Runtime: "runc"}
	if list := parse(t, two); len(list) != 2 || list[1] != second {
		t.Errorf("%+v", list)
	}
}

// TestOwnLists reads the lists that runs use.
func TestOwnLists(t *testing.T) {
	known, err := Known()
	if err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]struct {
		list, site string
		least      int
	}{"smoke.txt": {smokeText, Host, 50}, "smoke-vm.txt": {smokeVMText, VM, 30}} {
		seen := map[string]bool{}
		for _, p := range smoke(set.list, 1, nil) {
			for _, spec := range p.specs {
				if seen[spec] {
					t.Errorf("%s names %s twice", name, spec)
				}
				seen[spec] = true
				for _, runtime := range []string{node.Runc, node.Crun} {
					e := Expectation{Known: known, Runtime: runtime, Site: set.site}
					if entry, listed := e.holding()[spec]; listed && entry.Runtime == "" {
						t.Errorf("%s is in %s, and known not to pass", spec, name)
					}
				}
			}
		}
		if len(seen) < set.least {
			t.Errorf("%s has %d specs", name, len(seen))
		}
	}
}
