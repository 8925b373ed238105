package runtime

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// unitsOf are the units of a system that calls them as another runtime's, so that it lists none.
type unitsOf struct{ ended []string }

func (*unitsOf) Containers(context.Context) ([]string, error) { return nil, nil }

func (u *unitsOf) EndContainer(_ context.Context, ctr string) error {
	u.ended = append(u.ended, ctr)
	return nil
}

// TestSweepEndsUnitsOfOtherNames checks that the unit of a container that nobody owns is ended although it is called as
// another runtime's, and those of nobody else.
func TestSweepEndsUnitsOfOtherNames(t *testing.T) {
	g := newRig(t)
	kept, lost := g.run("sleep 1000"), g.run("sleep 1000")
	aside := filepath.Join(g.cfg.State, "aside")
	g.ok(os.Rename(g.cfg.bundle(g.pod, lost), aside)) // as if its record and directory had been lost
	units := &unitsOf{}
	g.cfg.Units = units
	live := func(pod string) bool { return pod == g.pod }
	g.ok(g.Sweep(t.Context(), live, func(string) (Handler, error) { return g.handler, nil }))
	if !slices.Equal(units.ended, []string{lost}) {
		t.Errorf("of %s, which nobody owns, and %s it ended the units of %v", lost, kept, units.ended)
	}
	g.ok(os.Rename(aside, g.cfg.bundle(g.pod, lost)))
}

// hungUnits are the units of two containers, of which one does not end.
type hungUnits struct{ hung, other, ended string }

func (u *hungUnits) Containers(context.Context) ([]string, error) {
	return []string{u.hung, u.other}, nil
}

func (u *hungUnits) EndContainer(ctx context.Context, ctr string) error {
	if ctr == u.hung {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	u.ended = ctr
	return nil
}

// TestSweepGoesOnPastWhatHangs sweeps orphans of each kind, of which the first does not die, or has a runtime or a unit
// that does not answer: the others are swept all the same.
func TestSweepGoesOnPastWhatHangs(t *testing.T) {
	hung, other := strings.Repeat("0", idLength), strings.Repeat("1", idLength)
	top := t.TempDir()
	cfg := Config{State: filepath.Join(top, "state"), Tracking: filepath.Join(top, "cgroups"), Group: "berth"}
	var groups []string
	for _, kind := range []string{cfg.monitorsGroup(), cfg.containersGroup()} {
		for id, process := range map[string]string{hung: "2147483647", other: ""} { // such a pid there is not
			dir := filepath.Join(cfg.Tracking, kind, id)
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "cgroup.kill"), nil, 0o600),
				os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(process), 0o600)); err != nil {
				t.Fatal(err)
			}
			groups = append(groups, dir)
		}
	}
	states := filepath.Join(cfg.State, "runtime", "runc")
	for _, id := range []string{hung, other} {
		if err := os.MkdirAll(filepath.Join(states, id), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	units := &hungUnits{hung: hung, other: other}
	cfg.Units = units
	cfg.Helper = func(ctx context.Context, _ string, cmd *exec.Cmd) error {
		if slices.Contains(cmd.Args, hung) {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return nil
	}
	r := &Runtime{cfg: cfg}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		none := func(string) bool { return false }
		err := r.Sweep(ctx, none, func(string) (Handler, error) { return Handler{Path: "/runc"}, nil })
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			t.Errorf("it ended with %v, its context with %v", err, ctx.Err())
		}
	})
	for _, dir := range groups {
		if killed, err := os.ReadFile(filepath.Join(dir, "cgroup.kill")); err != nil || string(killed) != "1" {
			t.Errorf("%s is not killed: %q, %v", dir, killed, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(states, "*")); !slices.Equal(left, []string{filepath.Join(states, hung)}) {
		t.Errorf("left of the runtime's state is %v", left)
	}
	if units.ended == "" {
		t.Error("the unit of the other container was not ended")
	}
}

// TestSweepWithoutAList has the run directory of a live pod be one that cannot be listed. Its containers are not taken
// for nobody's.
func TestSweepWithoutAList(t *testing.T) {
	pod, ctr := strings.Repeat("0", idLength), strings.Repeat("1", idLength)
	top := t.TempDir()
	cfg := Config{State: filepath.Join(top, "state"), Tracking: filepath.Join(top, "cgroups"), Group: "berth"}
	group := filepath.Join(cfg.Tracking, cfg.containersGroup(), ctr)
	state := filepath.Join(cfg.State, "runtime", "runc", ctr)
	for _, dir := range []string{group, state, cfg.dir(pod)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(cfg.dir(pod), "c"), nil, 0o600); err != nil { // no directory
		t.Fatal(err)
	}
	deleted := false
	cfg.Helper = func(context.Context, string, *exec.Cmd) error { deleted = true; return nil }
	r := &Runtime{cfg: cfg}
	live := func(id string) bool { return id == pod }
	err := r.Sweep(t.Context(), live, func(string) (Handler, error) { return Handler{Path: "/runc"}, nil })
	if err == nil || !strings.Contains(err.Error(), "which containers are pods'") {
		t.Errorf("it ended with %v", err)
	}
	if _, err := os.Stat(group); err != nil || deleted {
		t.Errorf("a container of a live pod was ended: %v, %v", err, deleted)
	}
}

// TestDeleteByForceAfterAHang has a runtime hang that is to delete a container: it is told to do so by force in what is
// left of the time.
func TestDeleteByForceAfterAHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forced := false
		cfg := Config{State: t.TempDir(), Helper: func(ctx context.Context, _ string, cmd *exec.Cmd) error {
			if slices.Contains(cmd.Args, "--force") {
				forced = ctx.Err() == nil
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		h := Handler{Path: "/runc", Root: t.TempDir()}
		if err := cfg.deleteState(ctx, strings.Repeat("1", idLength), h); err != nil || !forced {
			t.Errorf("by force: %v, %v", forced, err)
		}
	})
}
