package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/internal/cgroup"
	"berth/internal/helper"
)

// script makes a program that is a shell script.
func script(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// runner is the daemon's own way of running programs, and gone after the test.
func runner(t *testing.T) func(context.Context, string, *exec.Cmd) error {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	tracking, err := cgroup.Tracking(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("berth-hosttest-%d", os.Getpid())
	group, err := cgroup.Make(tracking, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	return (&helper.Runner{Root: group.Path()}).Run
}

// leftovers are what a trial in dir left: files there, and cgroups and mounts of its name.
func leftovers(t *testing.T, dir string, trials ...string) []string {
	t.Helper()
	var left []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, filepath.Join(dir, e.Name()))
	}
	mounts, err := cgroupMounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range trials {
		id := newTrial(Runtime{Path: path}, dir, nil).id
		for _, m := range mounts {
			if exists(filepath.Join(m.path, id)) {
				left = append(left, filepath.Join(m.path, id))
			}
		}
	}
	mounted, err := mountsAt(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range mounted {
		left = append(left, "a mount at "+at)
	}
	return left
}

func TestTryRuntimes(t *testing.T) {
	run, dir := runner(t), stateDir(t)
	facts, err := Probe()
	if err != nil {
		t.Fatal(err)
	}
	found := FindRuntimes(nil)
	if len(found) == 0 {
		t.Skip("neither crun nor runc is installed")
	}
	for _, r := range found {
		got := TryRuntime(t.Context(), r, dir, CgroupfsDriver, run)
		if left := leftovers(t, dir, r.Path); len(left) > 0 {
			t.Errorf("%s left %v", r.Name, left)
		}
		if got.Version == "" || got.Path != r.Path {
			t.Errorf("%s: %+v", r.Name, got)
		}
		if r.Name == "runc" && !got.Works {
			t.Errorf("runc does not work: %s", got.Why)
		}
		if r.Name == "crun" && strings.HasPrefix(got.Version, "1.8") && facts.Cgroup == CgroupHybrid {
			if got.Works || !strings.Contains(got.Why, "cgroups in hybrid mode not supported") {
				t.Errorf("crun 1.8 on a hybrid host: %+v", got)
			}
		}
		if got.Works != (got.Why == "") {
			t.Errorf("%s: works %v, because %q", r.Name, got.Works, got.Why)
		}
	}
}

// TestTryAgain wants what a killed trial left to be no trouble, and to be gone after the next.
func TestTryAgain(t *testing.T) {
	run, dir := runner(t), stateDir(t)
	path, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("runc is not installed")
	}
	killed := newTrial(Runtime{Path: path}, dir, run)
	if err := killed.create(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, dir, path); len(left) < 2 {
		t.Errorf("a container without its undo left only %v", left)
	}
	if got := TryRuntime(t.Context(), Runtime{Path: path}, dir, CgroupfsDriver, run); !got.Works {
		t.Errorf("the next trial: %s", got.Why)
	}
	if left := leftovers(t, dir, path); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// TestSweepTrials ends what a killed daemon's trial left, whoever's it was.
func TestSweepTrials(t *testing.T) {
	run, dir := runner(t), stateDir(t)
	path, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("runc is not installed")
	}
	if err := newTrial(Runtime{Path: path}, dir, run).create(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := SweepTrials(dir, CgroupfsDriver); err != nil {
			t.Error(err)
		}
		if left := leftovers(t, dir, path); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	}
}

// TestTrialsThatARuntimeForgot has a container that its runtime knows nothing of, killed as it was in the middle of
// making it, and whose process is in a cgroup below its own, as where systemd makes that. It is ended by the next
// trial, and by a sweep.
func TestTrialsThatARuntimeForgot(t *testing.T) {
	path, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("runc is not installed")
	}
	for name, next := range map[string]func(dir string, run func(context.Context, string, *exec.Cmd) error) error{
		"sweep": func(dir string, _ func(context.Context, string, *exec.Cmd) error) error {
			return SweepTrials(dir, CgroupfsDriver)
		},
		"trial": func(dir string, run func(context.Context, string, *exec.Cmd) error) error {
			if got := TryRuntime(t.Context(), Runtime{Path: path}, dir, CgroupfsDriver, run); !got.Works {
				return errors.New(got.Why)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			run, dir := runner(t), t.TempDir()
			forgot := newTrial(Runtime{Path: path}, dir, run)
			if err := forgot.create(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cgroup.RemoveTree("/" + forgot.id) })
			pids, err := cgroup.Processes("/" + forgot.id)
			if err != nil || len(pids) == 0 {
				t.Fatalf("processes %v, %v", pids, err)
			}
			mounts, err := cgroupMounts()
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range mounts {
				below := filepath.Join(m.path, forgot.id, "container")
				if !exists(filepath.Dir(below)) {
					continue
				}
				if err := os.Mkdir(below, 0o755); err != nil {
					t.Fatal(err)
				}
				for _, pid := range pids {
					if data, _ := os.ReadFile(filepath.Join(filepath.Dir(below), "cgroup.procs")); !slices.Contains(
						strings.Fields(string(data)), strconv.Itoa(pid)) {
						continue
					}
					if err := os.WriteFile(filepath.Join(below, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
						t.Logf("move %d to %s: %v", pid, below, err) // cpuset of v1 takes none before it has processors
					}
				}
			}
			if err := os.RemoveAll(forgot.state()); err != nil {
				t.Fatal(err)
			}
			if err := next(dir, run); err != nil {
				t.Error(err)
			}
			if left := leftovers(t, dir, path); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

func TestTryBadRuntimes(t *testing.T) {
	run, dir := runner(t), t.TempDir()
	bin := t.TempDir()
	for name, c := range map[string]struct{ path, why string }{
		"missing": {filepath.Join(bin, "none"), "no such file"},
		"mute":    {script(t, filepath.Join(bin, "mute"), ""), "says nothing"},
		"refuses": {script(t, filepath.Join(bin, "refuses"), "[ $1 = --version ] && echo refuses version 7 && exit; echo "+
			"the moon is wrong >&2; exit 3"), "the moon is wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			got := TryRuntime(t.Context(), Runtime{Path: c.path}, dir, CgroupfsDriver, run)
			if got.Works || got.unsure || !strings.Contains(got.Why, c.why) {
				t.Errorf("%+v", got)
			}
			if left := leftovers(t, dir, c.path); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
	hangs := script(t, filepath.Join(bin, "hangs"), "[ $3 = create ] || exec echo hangs version 1; sleep 60")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if got := TryRuntime(ctx, Runtime{Path: hangs}, dir, CgroupfsDriver, run); got.Works || !got.unsure {
		t.Errorf("one that hangs: %+v", got)
	}
	if left := leftovers(t, dir, hangs); len(left) > 0 {
		t.Errorf("one that hangs left %v", left)
	}
}

func TestFind(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	runc := script(t, filepath.Join(second, "runc"), "")
	crun := script(t, filepath.Join(first, "crun"), "")
	script(t, filepath.Join(second, "crun"), "")
	if err := os.WriteFile(filepath.Join(first, "runc"), nil, 0o644); err != nil { // not a program
		t.Fatal(err)
	}
	names := func(found []Runtime) (out []string) {
		for _, r := range found {
			out = append(out, r.Name+"="+r.Path)
		}
		return out
	}
	places := []string{first, second}
	if got, want := names(find(nil, places)), []string{"crun=" + crun, "runc=" + runc}; !slices.Equal(got, want) {
		t.Errorf("nothing configured: %v, wanted %v", got, want)
	}
	configured := map[string]Runtime{"runc": {Path: "/my/runc"}, "a": {Path: "/a"}}
	if got, want := names(find(configured, places)), []string{"crun=" + crun, "runc=/my/runc", "a=/a"}; !slices.Equal(got,
		want) {
		t.Errorf("configured: %v, wanted %v", got, want)
	}
	if len(configured) != 2 {
		t.Errorf("the configuration changed: %v", configured)
	}
	if got := find(nil, nil); len(got) != 0 {
		t.Errorf("nothing there: %v", got)
	}
}

func TestNamed(t *testing.T) {
	found := []Runtime{{Name: "crun", Path: "/c"}, {Name: "a", Path: "/a"}}
	if r, err := Named(found, "a"); err != nil || r.Path != "/a" {
		t.Errorf("a: %v, %v", r, err)
	}
	want := "find the runtime runc: it is in none of /usr/local/sbin, /usr/local/bin, /usr/sbin, /usr/bin, /sbin, /bin: " +
		"install it, or configure [runtimes.runc] with its path"
	if _, err := Named(found, "runc"); err == nil || err.Error() != want {
		t.Errorf("runc: %v", err)
	}
}

// TestChoose follows the outcomes of trials through the cache.
func TestChoose(t *testing.T) {
	bin, cache := t.TempDir(), filepath.Join(t.TempDir(), "state", "runtimes")
	crun, runc := script(t, filepath.Join(bin, "crun"), ""), script(t, filepath.Join(bin, "runc"), "")
	found := []Runtime{{Name: "crun", Path: crun}, {Name: "runc", Path: runc}}
	facts := Facts{Kernel: "6.1", Cgroup: CgroupHybrid}
	works := map[string]bool{runc: true}
	unsure := map[string]bool{}
	var tried []string
	try := func(_ context.Context, r Runtime) Runtime {
		tried = append(tried, r.Name)
		r.Version, r.Works, r.unsure = "1", works[r.Path], unsure[r.Path]
		if !r.Works {
			r.Why = "no luck"
		}
		return r
	}
	expect := func(step, wantName, wantTried string) {
		t.Helper()
		tried = nil
		name, all, err := ChooseRuntime(t.Context(), cache, facts, found, try)
		if name != wantName || strings.Join(tried, " ") != wantTried || len(all) != 2 || (err == nil) != (wantName != "") {
			t.Errorf("%s: chose %q after trying %v: %v, %v", step, name, tried, all, err)
		}
		for _, r := range all {
			if r.Name != filepath.Base(r.Path) || r.Works != works[r.Path] || (r.Why == "") != r.Works {
				t.Errorf("%s: %+v", step, r)
			}
		}
	}
	expect("first", "runc", "crun runc")
	expect("again", "runc", "")
	facts.Kernel = "6.2"
	expect("another kernel", "runc", "crun runc")
	works[crun] = true
	facts.Cgroup = CgroupV2
	expect("another cgroup mode", "crun", "crun runc")
	script(t, crun, "# another size")
	expect("another file", "crun", "crun")
	if err := os.Chtimes(runc, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	works[runc] = false
	expect("another time", "crun", "runc")
	found[1].Args = []string{"--rootless=false"}
	expect("other arguments", "crun", "runc")
	expect("the same arguments", "crun", "")
	if err := os.WriteFile(cache, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	works[crun] = false
	expect("a torn cache, and none works", "", "crun runc")
	expect("a failure is tried again", "", "crun runc")
	works[crun], unsure[runc] = true, true
	expect("mended", "crun", "crun runc")
	unsure[runc] = false
	expect("a trial cut short is repeated", "crun", "runc")
	expect("and then kept", "crun", "")
}

// TestChooseWithoutACache wants a disk that cannot be written to cost another trial, and no more.
func TestChooseWithoutACache(t *testing.T) {
	file := script(t, filepath.Join(t.TempDir(), "runc"), "")
	cache := filepath.Join(file, "runtimes") // below a file nothing can be made, by root either
	try := func(_ context.Context, r Runtime) Runtime { r.Works = true; return r }
	for range 2 {
		name, all, err := ChooseRuntime(t.Context(), cache, Facts{}, []Runtime{{Name: "runc", Path: file}}, try)
		if name != "runc" || len(all) != 1 || !all[0].Works {
			t.Errorf("chose %q of %v", name, all)
		}
		if err == nil || !strings.Contains(err.Error(), "keep which runtimes work: ") {
			t.Errorf("the cache: %v", err)
		}
	}
	never := func(_ context.Context, r Runtime) Runtime { r.Why = "no luck"; return r }
	name, _, err := ChooseRuntime(t.Context(), cache, Facts{}, []Runtime{{Name: "runc", Path: file}}, never)
	if name != "" || err == nil || !strings.Contains(err.Error(), "no luck") {
		t.Errorf("none works: chose %q, %v", name, err)
	}
}

func TestNoneWorks(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "c")
	never := func(context.Context, Runtime) Runtime { panic("there is nothing to try") }
	_, _, err := ChooseRuntime(t.Context(), cache, Facts{}, nil, never)
	if err == nil || !strings.Contains(err.Error(), "install one") {
		t.Errorf("nothing found: %v", err)
	}
	_, all, err := ChooseRuntime(t.Context(), cache, Facts{}, []Runtime{{Name: "x", Path: "/nonesuch/x"}}, never)
	if err == nil || !strings.Contains(err.Error(), "x (/nonesuch/x)") || all[0].Works || all[0].Why == "" {
		t.Errorf("a missing file: %v, %v", all, err)
	}
}

// TestOutcomesOfBefore were kept before anybody asked what a runtime is: it is asked then, without another trial.
func TestOutcomesOfBefore(t *testing.T) {
	file := script(t, filepath.Join(t.TempDir(), "runc"), "")
	cache := filepath.Join(t.TempDir(), "runtimes")
	r := Runtime{Name: "mine", Path: file}
	before, err := subjectOf(r, Facts{})
	if err != nil {
		t.Fatal(err)
	}
	before.Version, before.Works = "1.1.11", true
	if err := outcomes.Write(cache, []outcome{before}); err != nil {
		t.Fatal(err)
	}
	try := func(context.Context, Runtime) Runtime { panic("it was tried before") }
	for range 2 {
		_, all, err := ChooseRuntime(t.Context(), cache, Facts{}, []Runtime{r}, try)
		if err != nil || len(all) != 1 || all[0].Program != "runc" || len(all[0].Holes()) != 4 {
			t.Fatalf("%+v, %v", all, err)
		}
		var kept []outcome
		_, err = outcomes.Read(cache, &kept)
		if err != nil || len(kept) != 1 || !kept[0].Asked || kept[0].Program != "runc" {
			t.Fatalf("%+v, %v", kept, err)
		}
	}
}
