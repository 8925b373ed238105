package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/timeouts"
)

// testGroup makes a group for one test, whose processes and directories are gone after it.
func testGroup(t *testing.T) *Group {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	top, err := Tracking(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("berth-test-%d", os.Getpid())
	g, err := Make(top, name+"/"+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		whole := At(filepath.Join(top, name))
		ctx, cancel := context.WithTimeout(context.Background(), timeouts.For(30*time.Second))
		defer cancel()
		if err := errors.Join(whole.Kill(), whole.WaitEmpty(ctx), whole.Remove()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// startIn starts a shell in g that leaves behind a daemonised grandchild, and returns once the grandchild runs.
func startIn(t *testing.T, g *Group, script string) *exec.Cmd {
	t.Helper()
	dir, err := g.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	return startAt(t, int(dir.Fd()), script)
}

// startAt starts a shell in the group whose directory is open, and returns once the script has said that it is up.
func startAt(t *testing.T, dir int, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: dir}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "up\n" {
		t.Fatalf("script said %q, %v", line, err)
	}
	return cmd
}

const daemonise = `setsid sh -c 'setsid sleep 1000 & echo up; exec sleep 1000' & exec sleep 1000`

func TestKillTakesGrandchildren(t *testing.T) {
	for name, kill := range map[string]func(*Group) error{"file": (*Group).Kill, "each": (*Group).killEach} {
		t.Run(name, func(t *testing.T) {
			g := testGroup(t)
			cmd := startIn(t, g, daemonise)
			pids, err := g.Pids()
			if err != nil || len(pids) != 3 {
				t.Fatalf("processes %v, %v; wanted 3", pids, err)
			}
			if err := g.Remove(); !errors.Is(err, unix.EBUSY) {
				t.Fatalf("remove of a populated group: %v", err)
			}
			if err := kill(g); err != nil {
				t.Fatal(err)
			}
			if err := g.WaitEmpty(t.Context()); err != nil {
				t.Fatal(err)
			}
			if pids, err := g.Pids(); err != nil || len(pids) != 0 {
				t.Fatalf("left: %v, %v", pids, err)
			}
			_ = cmd.Wait()
			if err := g.Remove(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestKillEachOutrunsForks(t *testing.T) {
	g := testGroup(t)
	cmd := startIn(t, g, `echo up; while :; do (sleep 100 & sleep 100 &) ; done`)
	if err := g.killEach(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
	defer cancel()
	if err := g.WaitEmpty(ctx); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

func TestWaitEmptyReturnsAtOnce(t *testing.T) {
	g := testGroup(t)
	cmd := startIn(t, g, `echo up; exec sleep 1000`)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := g.WaitEmpty(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("wait on a populated group: %v", err)
	}
	killed := make(chan time.Time, 1)
	time.AfterFunc(20*time.Millisecond, func() { killed <- time.Now(); _ = g.Kill() })
	if err := g.WaitEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("seen empty %v after the kill; without an event it takes up to %v", time.Since(<-killed), pollSlice)
	_ = cmd.Wait()
}

func TestNothingThere(t *testing.T) {
	g := testGroup(t)
	for range 2 { // the second time it is gone
		if err := errors.Join(g.Kill(), g.WaitEmpty(t.Context()), g.Remove()); err != nil {
			t.Fatal(err)
		}
	}
	if pids, err := g.Pids(); err != nil || pids != nil {
		t.Fatalf("%v, %v", pids, err)
	}
	if _, err := g.Open(); err == nil {
		t.Fatal("opened a group that is gone")
	}
}

// TestPidsOfAGroupThatIsBeingMade asks for the processes of a group whose directory is there, and its files are not
// yet.
func TestPidsOfAGroupThatIsBeingMade(t *testing.T) {
	for !seenBeingMade(t) {
		if t.Failed() {
			return
		}
	}
	if _, err := Pids(filepath.Dir(t.TempDir())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is no group: %v", err)
	}
}

// seenBeingMade is false where the machine was so busy that the files came later than a group's may.
func seenBeingMade(t *testing.T) bool {
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "procs")
	if err := os.WriteFile(other, []byte("7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	made := make(chan time.Time)
	asked := time.Now()
	go func() {
		time.Sleep(20 * time.Millisecond)
		_ = os.Rename(other, filepath.Join(dir, "cgroup.procs")) // never there without what is in it
		made <- time.Now()
	}()
	pids, err := Pids(dir)
	if late := (<-made).Sub(asked) > formation; late {
		return false
	}
	if err != nil || len(pids) != 1 || pids[0] != 7 {
		t.Errorf("%v, %v", pids, err)
	}
	return true
}

// TestPidsOfAGroupThatComesAndGoes never fails, whenever the group is made and removed.
func TestPidsOfAGroupThatComesAndGoes(t *testing.T) {
	group := filepath.Join(testGroup(t).Path(), "flicker")
	done := make(chan error)
	go func() {
		var errs []error
		for range 3000 {
			errs = append(errs, os.Mkdir(group, 0o755), os.Remove(group))
		}
		done <- errors.Join(errs...)
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
		if pids, err := Pids(group); err != nil || len(pids) != 0 {
			t.Errorf("%v, %v", pids, err)
			<-done
			return
		}
	}
}

func TestRemoveTreeOfGroups(t *testing.T) {
	g := testGroup(t)
	for _, below := range []string{"a/b/c", "a/d", "e"} {
		if _, err := Make(g.Path(), below); err != nil {
			t.Fatal(err)
		}
	}
	cmd := startIn(t, At(filepath.Join(g.Path(), "a/b")), `echo up; exec sleep 1000`)
	if pids, err := g.Pids(); err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Fatalf("%v, %v", pids, err)
	}
	if err := errors.Join(g.Kill(), g.WaitEmpty(t.Context()), g.Remove()); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if _, err := os.Stat(g.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

// TestMadeAgain has a group be ended and not removed, as by a daemon that is killed in between. What is born into it
// after it was made again lives. One that something lives in is left alone.
func TestMadeAgain(t *testing.T) {
	g := testGroup(t)
	made := func() {
		t.Helper()
		again, err := Make(filepath.Dir(g.path), filepath.Base(g.path))
		if err != nil || again.path != g.path {
			t.Fatal(again, err)
		}
	}
	for range 2 {
		if err := g.Kill(); err != nil {
			t.Fatal(err)
		}
		made()
		cmd := startIn(t, g, "echo up; exec sleep 1000")
		made()
		if pids, err := g.Pids(); err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
			t.Errorf("%v, %v in the group, not %d", pids, err, cmd.Process.Pid)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
}

func TestMakeStaysBelow(t *testing.T) {
	for _, name := range []string{"..", "../x", "/x", "a/../../b", ""} {
		if _, err := Make(t.TempDir(), name); err == nil {
			t.Errorf("made %q", name)
		}
	}
}

// TestTrackingMounts runs where no cgroup2 is mounted: it hides the host's candidates behind empty directories.
func TestTrackingMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, state := t.TempDir(), filepath.Join(t.TempDir(), "cgroup2")
	defer func() { _ = unix.Unmount(state, unix.MNT_DETACH) }()
	options := func() string {
		data, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return cgroup2Options(string(data))
	}
	before := options()
	defer func() {
		if after := options(); after != before {
			t.Errorf("the options of the hierarchy are %q, and were %q", after, before)
		}
	}()
	for range 2 {
		got, err := tracking([]string{dir, state})
		if err != nil || got != state {
			t.Fatalf("%s, %v", got, err)
		}
	}
	if !isCgroup2(state) {
		t.Fatal("nothing mounted")
	}
	for end := time.Now().Add(timeouts.For(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		err := unix.Unmount(state, 0)
		if err == nil {
			break
		}
		// who looks at the groups of this machine meanwhile is in there, for a moment
		if err != unix.EBUSY || time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if isCgroup2(state) {
		t.Fatal("the second call mounted once more")
	}
}

// A group of a v1 hierarchy has neither cgroup.kill nor cgroup.events.
func TestKillAndWaitOnV1(t *testing.T) {
	const pids = "/sys/fs/cgroup/pids"
	if isCgroup2(pids) || isCgroup2(root) {
		t.Skip("this host has no v1 hierarchy for pids")
	}
	g, err := Make(pids, "berth-test-v1")
	if err != nil {
		t.Skipf("no v1 group can be made: %v", err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(g.Path()+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := g.WaitEmpty(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a populated group is waited for: %v", err)
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := g.WaitEmpty(t.Context()); err != nil {
		t.Errorf("an empty group: %v", err)
	}
}

func TestCgroup2Options(t *testing.T) {
	const both = "nsdelegate,memory_recursiveprot"
	for line, want := range map[string]string{
		"41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw," + both + "\n":                     both,
		"41 31 0:38 / /x rw - cgroup2 none rw\n42 1 0:38 / /y rw - cgroup2 none rw,nsdelegate\n": "nsdelegate",
		"41 31 0:38 / /x rw - cgroup cgroup rw,pids\n":                                           "",
		"": "",
	} {
		if got := cgroup2Options(line); got != want {
			t.Errorf("%q: %q, wanted %q", line, got, want)
		}
	}
}
