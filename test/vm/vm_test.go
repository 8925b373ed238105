package vm

import (
	"testing"
)

func TestTail(t *testing.T) {
	for _, c := range []struct {
		text  string
		lines int
		want  string
	}{{"", 3, ""}, {"a\nb\n", 3, "a\nb"}, {"a\nb\nc\n", 2, "b\nc"}} {
		if got := tail(c.text, c.lines); got != c.want {
			t.Errorf("the last %d of %q: %q", c.lines, c.text, got)
		}
	}
}
