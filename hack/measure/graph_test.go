package main

import "testing"

func TestUpwardArrows(t *testing.T) {
	for name, c := range map[string]struct {
		uses []string // pairs: who uses, what is used
		want int
	}{
		"a line":               {[]string{"a", "b", "b", "c", "a", "c"}, 0},
		"a circle of two":      {[]string{"a", "b", "b", "a"}, 1},
		"a circle below a top": {[]string{"top", "a", "a", "b", "b", "c", "c", "a"}, 1},
		"two circles":          {[]string{"a", "b", "b", "a", "b", "c", "c", "d", "d", "c"}, 2},
		"a use of itself":      {[]string{"a", "a"}, 0},
	} {
		g := graph{}
		for i := 0; i < len(c.uses); i += 2 {
			g.add(c.uses[i], c.uses[i+1])
		}
		if got := g.upward(); got != c.want {
			t.Errorf("%s: %d arrows go upward, want %d", name, got, c.want)
		}
	}
}
