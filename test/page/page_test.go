package page

import "testing"

func TestRead(t *testing.T) {
	page := "text $ no\n\n    $ a b\n    one  … three\n    …\n    last\n\n    not typed\n\n" +
		"    $ cat <<'EOF'\n    x\n    EOF\n    $ c\n"
	all := Read(page)
	if len(all) != 3 || all[0].Command != "a b" || all[1].Command != "cat <<'EOF'\nx\nEOF" || all[2].Command != "c" {
		t.Fatalf("read as %q", all)
	}
	for out, want := range map[string]bool{
		"one 2 2 three\nlast\n": true, "one two   three\nmore\nand more\nlast\n": true,
		"one two\nlast\n": false, "one 2 three\nlast\nmore\n": false,
	} {
		if got := all[0].Pattern().MatchString(out); got != want {
			t.Errorf("%q: %v", out, got)
		}
	}
	if p := all[2].Pattern(); !p.MatchString("") || p.MatchString("anything\n") {
		t.Error("a command that is said to print nothing may print something")
	}
}
