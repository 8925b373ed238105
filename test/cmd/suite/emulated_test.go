package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestKnownToFail has a test that is known to fail be a failure once it passes, is skipped, or is not there.
func TestKnownToFail(t *testing.T) {
	line := func(action, test string) string {
		return `{"Action":"` + action + `","Package":"p","Test":"` + test + `"}` + "\n"
	}
	for _, c := range []struct {
		name, in string
		failed   []string
		unseen   []string
	}{
		{"fails as known", line("fail", "A") + line("fail", ""), nil, nil},
		{"passes", line("pass", "A") + line("pass", ""), []string{"p A"}, nil},
		{"is skipped", line("skip", "A") + line("pass", ""), []string{"p A"}, nil},
		{"is gone", line("pass", "B") + line("pass", ""), nil, []string{"p A"}},
		{"another fails beside it", line("fail", "A") + line("fail", "B") + line("fail", ""), []string{"p B"}, nil},
		{"a subtest fails in its place", line("fail", "A/x") + line("fail", "A") + line("fail", ""),
			[]string{"p A/x"}, []string{"p A"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tally := newTally(&strings.Builder{})
			tally.known = map[string]string{"p A": "no clone3"}
			tally.read(strings.NewReader(c.in))
			if got := slices.Sorted(maps.Keys(tally.known)); !slices.Equal(tally.failures, c.failed) ||
				!slices.Equal(got, c.unseen) {
				t.Errorf("failures %v, not seen %v; want %v and %v", tally.failures, got, c.failed, c.unseen)
			}
		})
	}
}

func TestParseEmulated(t *testing.T) {
	list, err := parseEmulated("# a list\n\nfails: no clone3\n\tp A\n\tp B/x\n\nnot run: no processes\n\tq\n\tr C\n")
	if err != nil || !maps.Equal(list.tests, map[string]string{"p A": "no clone3", "p B/x": "no clone3"}) ||
		!maps.Equal(list.left, map[string]string{"q": "no processes", "r C": "no processes"}) {
		t.Errorf("%+v, %v", list, err)
	}
	run, gone := list.choose([]string{"p", "r"})
	if !slices.Equal(run, []string{"p", "r"}) || !slices.Equal(gone, []string{"q"}) {
		t.Errorf("run %v, gone %v", run, gone)
	}
	for _, bad := range []string{"\tp A\n", "fails: \n", "fails: x\n\tp A\n\tp A\n", "p A\n"} {
		if _, err := parseEmulated(bad); err == nil {
			t.Errorf("%q: taken", bad)
		}
	}
	if _, err := parseEmulated(emulatedText); err != nil {
		t.Error(err)
	}
}
