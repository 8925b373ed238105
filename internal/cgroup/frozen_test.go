package cgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/test/timeouts"
)

// freezerGroup makes a group of the v1 freezer for one test, with one in it, which are gone after it.
func freezerGroup(t *testing.T) (path string, top, below *Group) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	path = fmt.Sprintf("/berth-test-%d-%s", os.Getpid(), filepath.Base(t.Name()))
	dir := freezerDir(path)
	if dir == "" {
		t.Skip("this machine has no freezer of cgroup v1")
	}
	top, below = At(dir), At(filepath.Join(dir, "below"))
	t.Cleanup(func() {
		_ = Write(filepath.Join(dir, "freezer.state"), "THAWED")
		if err := RemoveTree(path); err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(below.Path(), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, top, below
}

// freeze freezes a group, and returns when all in it stand still: until then they may still die.
func freeze(t *testing.T, g *Group) {
	t.Helper()
	state := filepath.Join(g.Path(), "freezer.state")
	if err := Write(state, "FROZEN"); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(timeouts.For(30 * time.Second)); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(state)
		if strings.TrimSpace(string(text)) == "FROZEN" {
			return
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("the group is %s, %v", text, err)
		}
	}
}

// TestKillThaws has processes stand still by the v1 freezer, in a group and in one below it: they die of Kill.
func TestKillThaws(t *testing.T) {
	for name, frozen := range map[string]func(top, below *Group) []*Group{
		"top":   func(top, _ *Group) []*Group { return []*Group{top} },
		"below": func(_, below *Group) []*Group { return []*Group{below} },
		"both":  func(top, below *Group) []*Group { return []*Group{top, below} },
	} {
		t.Run(name, func(t *testing.T) {
			path, top, below := freezerGroup(t)
			cmd := startIn(t, testGroup(t), `echo up; exec sleep 1000`)
			if err := Write(filepath.Join(below.Path(), procs), fmt.Sprint(cmd.Process.Pid)); err != nil {
				t.Fatal(err)
			}
			for _, g := range frozen(top, below) {
				freeze(t, g)
			}
			if want := name != "below"; FrozenItself(path) != want {
				t.Errorf("frozen itself: %v", !want)
			}
			if err := top.Kill(); err != nil {
				t.Fatal(err)
			}
			if died := signalOf(t, waitSoon(t, cmd.Wait)); died != syscall.SIGKILL {
				t.Errorf("it died of %v", died)
			}
		})
	}
}

// TestKillLeavesWhatIsAbove has a group above be frozen: it stays so, and the process lives.
func TestKillLeavesWhatIsAbove(t *testing.T) {
	path, top, below := freezerGroup(t)
	cmd := startIn(t, testGroup(t), `echo up; exec sleep 1000`)
	if err := Write(filepath.Join(below.Path(), procs), fmt.Sprint(cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	freeze(t, top)
	if err := below.Kill(); err != nil {
		t.Fatal(err)
	}
	if !FrozenItself(path) || !Frozen(cmd.Process.Pid) {
		t.Error("the group above was thawed")
	}
	if err := Thaw(path); err != nil {
		t.Fatal(err)
	}
	if died := signalOf(t, waitSoon(t, cmd.Wait)); died != syscall.SIGKILL {
		t.Errorf("it died of %v", died)
	}
}

// TestKillNeedsNoThawOfV2 freezes a group of cgroup2: SIGKILL reaches what is in it, by the file and one by one.
func TestKillNeedsNoThawOfV2(t *testing.T) {
	for name, kill := range map[string]func(*Group) error{"file": (*Group).Kill, "each": (*Group).killEach} {
		t.Run(name, func(t *testing.T) {
			g := testGroup(t)
			cmd := startIn(t, g, `echo up; exec sleep 1000`)
			if err := Write(filepath.Join(g.Path(), "cgroup.freeze"), "1"); err != nil {
				t.Fatal(err)
			}
			if err := kill(g); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
			defer cancel()
			if err := g.WaitEmpty(ctx); err != nil {
				t.Error(err)
			}
			_ = waitSoon(t, cmd.Wait)
		})
	}
}

// waitSoon waits for a process that was killed.
func waitSoon(t *testing.T, wait func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(timeouts.For(30 * time.Second)):
		t.Fatal("it does not die of SIGKILL")
		return nil
	}
}
