package memory

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

func never(int) bool  { return false }
func always(int) bool { return true }

// group is a directory with the files of a group.
func group(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"memory.max": "77\n", "memory.stat": "anon 1000\nfile 99999\nshmem 234\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	old := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(old) })
	t.Setenv("GOMEMLIMIT", "")
	return dir
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSet bounds a daemon by what is configured, and by what its start took.
func TestSet(t *testing.T) {
	state, dir, quiet := t.TempDir(), group(t), slog.New(slog.DiscardHandler)
	b := Open(state, dir, "boot", never, quiet)
	if got := read(t, filepath.Join(dir, "memory.max")); got != "max" {
		t.Errorf("the bound of an earlier daemon is left: %q", got)
	}
	b.Set(200 << 20)
	want := Status{Limit: 200 << 20, Hard: true, Used: 1234}
	if got := b.Status(); got != want {
		t.Errorf("%+v", got)
	}
	if got := read(t, filepath.Join(dir, "memory.max")); got != "209715200" {
		t.Errorf("memory.max is %q", got)
	}
	if got := debug.SetMemoryLimit(-1); got != (200<<20)/100*80 {
		t.Errorf("the limit of the runtime is %d", got)
	}
	b.Set(0)
	if got := b.Status(); got.Limit < least || got.Limit != usual(peak()) {
		t.Errorf("%+v after a start that took %d", got, peak())
	}
	if usual(1<<20) != 1<<30 || usual(1<<30) != 4<<30 {
		t.Error("not the greater of 1 GiB and four times what a start takes")
	}
	soft := Open(t.TempDir(), "", "boot", never, quiet)
	soft.Set(300 << 20)
	if got := soft.Status(); got.Hard || got.Limit != 300<<20 || got.Used < 1<<20 || got.Problem != "" {
		t.Errorf("without a group: %+v", got)
	}
	free := Open(t.TempDir(), dir, "boot", never, quiet)
	free.Set(None)
	if got := free.Status(); got.Limit != 0 || got.Hard || got.Problem != "" {
		t.Errorf("without a limit: %+v", got)
	}
	lost := Open(t.TempDir(), filepath.Join(dir, "none"), "boot", never, quiet)
	lost.Set(1 << 30)
	if got := lost.Status(); got.Hard || !strings.Contains(got.Problem, "does not bound") {
		t.Errorf("with a group that has no memory.max: %+v", got)
	}
}

// TestDeaths kills daemons, of memory and otherwise, and counts.
func TestDeaths(t *testing.T) {
	state, dir := t.TempDir(), group(t)
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	for i := range 3 {
		b := Open(state, dir, "boot", always, log)
		b.Set(200 << 20)
		if got := b.Status(); got.Deaths != i || !got.Hard || (got.Problem != "") != (i > 0) {
			t.Errorf("daemon %d: %+v", i, got)
		}
	}
	b := Open(state, dir, "boot", always, log)
	b.Set(200 << 20)
	got := b.Status()
	if got.Deaths != 3 || got.Hard || got.Limit != 0 ||
		!strings.Contains(got.Problem, "runs without one: raise limits.memory") ||
		got.Since.IsZero() || !strings.Contains(said.String(), "has no limit") {
		t.Errorf("after three deaths: %+v, and the log says %s", got, said.String())
	}
	if text := read(t, filepath.Join(dir, "memory.max")); text != "max" {
		t.Errorf("memory.max is %q", text)
	}
	b.Close()
	if b = Open(state, dir, "boot", always, log); b.Status().Deaths != 3 {
		t.Error("a daemon that ended by itself has died")
	}
	if b = Open(state, dir, "boot", never, log); b.Status().Deaths != 3 {
		t.Error("a daemon that was killed otherwise has died of memory")
	}
	for i := range b.note.Deaths {
		b.note.Deaths[i] = time.Now().Add(-within)
	}
	b.save()
	if b = Open(state, dir, "boot", never, log); b.Status() != (Status{Used: 1234}) {
		t.Errorf("ten minutes later: %+v", b.Status())
	}
	b = Open(state, dir, "boot", always, log)
	if got := b.Status().Deaths; got != 1 {
		t.Errorf("%d deaths", got)
	}
	if b = Open(state, dir, "another boot", always, log); b.Status().Deaths != 0 {
		t.Error("a process of another boot has died")
	}
	if err := os.WriteFile(filepath.Join(state, "memory"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b = Open(state, dir, "boot", always, log); b.Status().Deaths != 0 {
		t.Error("a torn note counts")
	}
	lost := Open(filepath.Join(state, "none"), dir, "boot", always, log)
	lost.Set(200 << 20)
	if !lost.Status().Hard {
		t.Error("without a note there is no bound")
	}
}

// TestKilled looks into a log as the kernel writes it.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	text := "6,100,5,-;a line\n" +
		"3,101,6,-;Memory cgroup out of memory: Killed process 123 (berth) total-vm:1kB, anon-rss:1kB\n" +
		"3,102,7,-;Out of memory: Killed process 77 (sleep) total-vm:1kB\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[int]bool{123: true, 12: false, 77: false, 1234: false} {
		if got := killedBy(path, pid); got != want {
			t.Errorf("%d: %v", pid, got)
		}
	}
	if killedBy(filepath.Join(path, "none"), 123) || killedBy("/dev/kmsg", 1<<22+1) {
		t.Error("a log that has nothing of it")
	}
}
