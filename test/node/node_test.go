package node

import (
	"os"
	"strings"
	"testing"
)

func TestParseLog(t *testing.T) {
	const at = "2026-01-02T03:04:05.000000006Z "
	for _, c := range []struct{ name, in, stdout, stderr, bad string }{
		{"two streams", at + "stdout F a b\n" + at + "stderr F c\n", "a b\n", "c\n", ""},
		{"split line", at + "stdout P aa\n" + at + "stderr F x\n" + at + "stdout F bb\n", "aabb\n", "x\n", ""},
		{"empty line", at + "stdout F \n", "\n", "", ""},
		{"torn", at + "stdout F a", "", "", "middle of a line"},
		{"no time", "yesterday stdout F a\n", "", "", "yesterday"},
		{"odd stream", at + "stdlog F a\n", "", "", "stdlog"},
		{"odd tag", at + "stdout X a\n", "", "", `"X"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines, err := parseLog(c.in)
			if c.bad != "" {
				if err == nil || !strings.Contains(err.Error(), c.bad) {
					t.Fatalf("error %v; wanted one about %s", err, c.bad)
				}
				return
			}
			if err != nil || Text(lines, "stdout") != c.stdout || Text(lines, "stderr") != c.stderr {
				t.Errorf("%q %q %v", Text(lines, "stdout"), Text(lines, "stderr"), err)
			}
		})
	}
}

func TestSweepLeavesNodesInUse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("nodes need root")
	}
	used, dead := fakeNode(t), fakeNode(t)
	if err := writeOwner(used); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dead+"/owner", []byte("4194303 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	Sweep()
	if _, err := os.Stat(used); err != nil {
		t.Error("Sweep removed a node in use")
	}
	if _, err := os.Stat(dead); err == nil {
		t.Error("Sweep left a node whose owner is dead")
	}
}

func fakeNode(t *testing.T) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "bt-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
