package cli

import (
	"strings"
	"testing"
)

// TestTablesFit has a table closer together on a terminal that it does not fit otherwise.
func TestTablesFit(t *testing.T) {
	table := newTable("A", "B", "C")
	table.add("aaaa", "bbbb", "cccc")
	for width, want := range map[int]string{
		0: "aaaa   bbbb   cccc", 80: "aaaa   bbbb   cccc", 18: "aaaa   bbbb   cccc",
		17: "aaaa  bbbb  cccc", 5: "aaaa  bbbb  cccc",
	} {
		if got := table.fitted(width)[1]; got != want {
			t.Errorf("in %d columns: %q", width, got)
		}
	}
}

// TestContainersFit wants the list of a container with a port to fit the narrowest terminal that is usual.
func TestContainersFit(t *testing.T) {
	d, logs := runnable(t)
	d.behave = func(l *life) int32 { <-l.stop; return 0 }
	args := []string{"run", "-d", "--log-dir", logs, "--name", "web", "-p", "1080:80", "img:1"}
	if _, errs, code := d.berth(t, args...); code != 0 {
		t.Fatal(errs)
	}
	out, _, _ := d.berth(t, "ps")
	rows := newTable(strings.Fields(strings.Split(out, "\n")[0])...)
	rows.add(strings.Fields(strings.Split(out, "\n")[1])...)
	for _, line := range rows.fitted(80) {
		if len(line) > 80 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	if out, _, _ := d.berth(t, "ps", "--no-trunc"); !strings.Contains(out, "web ("+d.pods[0].Id+")") {
		t.Errorf("with whole ids: %s", out)
	}
}

// TestShortIDs leaves digests alone.
func TestShortIDs(t *testing.T) {
	whole := id("c1")
	for text, want := range map[string]string{
		"container " + whole + ": gone":            "container c10000000000: gone",
		"image sha256:" + whole:                    "image sha256:" + whole,
		"a@sha256:" + whole + " of " + whole:       "a@sha256:" + whole + " of c10000000000",
		"no id " + whole[:20] + ", " + whole + "0": "no id " + whole[:20] + ", " + whole + "0",
	} {
		if got := shortIDs(text); got != want {
			t.Errorf("%q became %q", text, got)
		}
	}
}
