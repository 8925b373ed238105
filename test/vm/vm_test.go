package vm

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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

// TestUntil wants a machine's output read to the line at which it is to be cut off, and no further; and all of it
// without one.
func TestUntil(t *testing.T) {
	const said = "starting\ncut me\n" + began + "p\n=== RUN   TestX\n--- PASS: TestX (0.00s)\nPASS\n" + ended + "0\n"
	for until, want := range map[string]error{"cut me": errUntil, "cut": nil, "": nil} {
		m := &Machine{out: bufio.NewScanner(strings.NewReader(said))}
		var events strings.Builder
		lines := 0
		if err := m.sections(until, &events, func() { lines++ }); !errors.Is(err, want) {
			t.Errorf("until %q: %v, want %v", until, err, want)
		}
		if got := strings.Contains(events.String(), `"Action":"pass"`); got != (want == nil) ||
			(lines == 2) != (want != nil) {
			t.Errorf("until %q: %d lines, events %s", until, lines, events.String())
		}
	}
}

// TestMachineThatGoesOff wants the package that was being tested to have failed.
func TestMachineThatGoesOff(t *testing.T) {
	const said = began + "p\n=== RUN   TestX\n    x_test.go:1: hangs\n"
	m := &Machine{out: bufio.NewScanner(strings.NewReader(said))}
	var events strings.Builder
	if err := m.sections("", &events, func() {}); err == nil ||
		!strings.Contains(err.Error(), "went off in the tests of p") {
		t.Error(err)
	}
	for _, want := range []string{"hangs", `"Action":"fail","Package":"vm/p"`} {
		if !strings.Contains(events.String(), want) {
			t.Errorf("no %s in %s", want, events.String())
		}
	}
}

// TestLines runs what is made for the machine: each test in one boot, and one that ends with the power does not count.
func TestLines(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "tests"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tests", "tests"), []byte("#!/bin/sh\necho \"$X ran $*\"\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	script := ""
	for i, test := range []Test{
		{Package: "p", Run: "A|B", Until: "x", Env: []string{"X=first"}}, {Package: "p", Env: []string{"X=then"}},
		{Package: "q", Down: true, Env: []string{"X=down"}}, {Package: "r", Env: []string{"X=last"}},
	} {
		sub := filepath.Join(dir, strconv.Itoa(i))
		if err := os.CopyFS(sub, os.DirFS(filepath.Join(dir, "tests"))); err != nil {
			t.Fatal(err)
		}
		script += strings.ReplaceAll(test.lines(sub), "/var/lib/ran", dir+"/ran")
	}
	for boot, want := range []string{"first ran -test.v=test2json -test.timeout=0 -test.run=A|B\n",
		began + "p\nthen ran -test.v=test2json -test.timeout=0\n" + ended + "0\n" +
			began + "q\ndown ran -test.v=test2json -test.timeout=0\n" + ended + "0\n",
		began + "r\nlast ran -test.v=test2json -test.timeout=0\n" + ended + "0\n", ""} {
		if out, err := exec.Command("sh", "-c", script).Output(); err != nil || string(out) != want {
			t.Errorf("boot %d: %q, %v", boot, out, err)
		}
	}
}

// TestKeep copies a folder of a machine's disk, in the place of what was there, and says when there is none.
func TestKeep(t *testing.T) {
	payload, to := t.TempDir(), t.TempDir()
	m := &Machine{dir: t.TempDir()}
	for name, text := range map[string]string{
		filepath.Join(payload, "results/vm-x/phase/report"): "new", filepath.Join(to, "results/vm-x/old"): "old",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := run("mke2fs", "-q", "-t", "ext4", "-d", payload, "-F", m.file("payload.img"), "8M"); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(to, "results/vm-x")
	if err := m.keep("results/vm-x", kept); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(kept, "phase/report")); err != nil || string(text) != "new" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(kept, "old")); err == nil {
		t.Error("what was there before is there still")
	}
	if err := m.keep("results/vm-y", filepath.Join(to, "results/vm-y")); err == nil {
		t.Error("a folder that is not there was kept")
	}
}
