package systemd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/cgroup"
	"berth/internal/cgroup/limits"
	"berth/test/timeouts"
)

// TestMain has the test program be the process that holds the monitors' scope.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "hold" {
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	os.Exit(m.Run())
}

// real gives the units of an instance of its own, on a machine that systemd runs.
func real(t *testing.T) *Units {
	t.Helper()
	if _, err := os.Stat("/run/systemd/system"); err != nil || cgroup.Mode() != cgroup.V2 {
		t.Skip("this machine is not run by systemd, on cgroup v2: make test-vm has one that is")
	}
	u := &Units{Manager: &Manager{}, Instance: "berth-" + random(3), Mount: "/sys/fs/cgroup"}
	t.Cleanup(func() {
		if err := u.Tidy(context.Background()); err != nil {
			t.Errorf("tidy: %v", err)
		}
		within(t, "the slice is gone", func() bool { return !there(u, "/berth.slice/"+ownSlice(u.Instance)) })
		u.Manager.Close()
	})
	return u
}

// monitorScope is the scope of the monitors of the same instance.
func monitorScope(t *testing.T, u *Units) *MonitorScope {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &MonitorScope{Manager: u.Manager, Instance: u.Instance, Mount: u.Mount, Holder: self}
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func there(u *Units, path string) bool {
	_, err := os.Stat(filepath.Join(u.Mount, path))
	return err == nil
}

func within(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(timeouts.For(time.Minute)); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// born starts a process in a group of the monitors' scope, as a monitor starts there.
func born(t *testing.T, s *MonitorScope, name string) *holder {
	t.Helper()
	release, err := s.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	g, err := cgroup.Make(s.Mount, filepath.Join(s.Group(), "monitors", name))
	if err != nil {
		t.Fatal(err)
	}
	h, err := startHolder(s.Holder)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(g.Path(), "cgroup.procs"), []byte(strconv.Itoa(int(h.pid()))), 0); err != nil {
		t.Fatal(err)
	}
	return h
}

func systemctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestMonitorScope(t *testing.T) {
	u := real(t)
	s := monitorScope(t, u)
	name := s.name()
	for range 5 {
		one := born(t, s, "one")
		two := born(t, s, "two") // joins
		state := systemctl(t, "show", "-p", "ActiveState,Delegate,Slice,ControlGroup", name)
		if state != "Slice="+ownSlice(u.Instance)+"\nControlGroup=/"+s.Group()+"\nDelegate=yes\nActiveState=active" {
			t.Errorf("systemd says of the scope:\n%s", state)
		}
		one.end()
		if !there(u, s.Group()+"/monitors/two") {
			t.Error("the scope went with one of two")
		}
		two.end()
		// The next one is born while systemd lets go of this one, or after it.
	}
	within(t, "the scope is gone", func() bool { return !there(u, s.Group()) })
}

// TestMonitorScopeThatNobodyKnows takes the unit away from under a live monitor, as happens when systemd lets go of
// the scope in the moment in which one is born there.
func TestMonitorScopeThatNobodyKnows(t *testing.T) {
	u := real(t)
	s := monitorScope(t, u)
	g, err := cgroup.Make(u.Mount, filepath.Join(s.Group(), "monitors", "orphan"))
	if err != nil {
		t.Fatal(err)
	}
	h, err := startHolder(s.Holder)
	if err != nil {
		t.Fatal(err)
	}
	defer h.end()
	if err := os.WriteFile(filepath.Join(g.Path(), "cgroup.procs"), []byte(strconv.Itoa(int(h.pid()))), 0); err != nil {
		t.Fatal(err)
	}
	next := born(t, s, "next")
	defer next.end()
	within(t, "systemd knows the scope", func() bool {
		known, err := u.Manager.active(t.Context(), s.name())
		return known && err == nil
	})
	if pids, err := g.Pids(); err != nil || !slices.Equal(pids, []int{int(h.pid())}) {
		t.Errorf("the monitor was moved out of its group: %v %v", pids, err)
	}
}

// TestMonitorScopeThatNobodyCameTo has a daemon die while it makes the scope: the process that was to hold it is dead
// before systemd has put it there, so the scope is active and has never had a process.
func TestMonitorScopeThatNobodyCameTo(t *testing.T) {
	u := real(t)
	s := monitorScope(t, u)
	h, err := startHolder(s.Holder)
	if err != nil {
		t.Fatal(err)
	}
	name := s.name()
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	within(t, "the process is dead", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(int(h.pid())) + "/stat")
		return err == nil && strings.Contains(string(stat), ") Z ")
	})
	if err := u.Manager.startScope(t.Context(), name, s.properties(h.pid())); err != nil {
		t.Fatal(err)
	}
	within(t, "systemd has made the scope", func() bool {
		known, err := u.Manager.active(t.Context(), name)
		return known && err == nil
	})
	h.end()
	next := born(t, s, "next")
	defer next.end()
	if known, err := u.Manager.active(t.Context(), name); !known || err != nil {
		t.Errorf("the scope of the next: active %v, %v", known, err)
	}
}

// TestReconnect calls before and after systemd has executed itself anew, and after the bus was started anew.
func TestReconnect(t *testing.T) {
	u := real(t)
	s := monitorScope(t, u)
	one := born(t, s, "one")
	defer one.end()
	for _, how := range [][]string{{"daemon-reexec"}, {"restart", "dbus.service"}, {"daemon-reload"}} {
		systemctl(t, how...)
		if known, err := u.Manager.active(t.Context(), s.name()); !known || err != nil {
			t.Errorf("after systemctl %v: active %v, %v", how, known, err)
		}
		two := born(t, s, "two")
		two.end()
	}
}

// TestBus reaches systemd over the bus, which is the way where it has no socket of its own.
func TestBus(t *testing.T) {
	u := real(t)
	s := monitorScope(t, u)
	conn, err := dial(t.Context(), busSocket, true)
	if err != nil {
		t.Fatal(err)
	}
	u.Manager.conn = conn
	one := born(t, s, "one")
	one.end()
}

// scope makes a scope as an OCI runtime does.
func scope(t *testing.T, u *Units, slice, ctr string) *holder {
	t.Helper()
	h, err := startHolder(monitorScope(t, u).Holder)
	if err != nil {
		t.Fatal(err)
	}
	err = u.Manager.startScope(t.Context(), scopeOf(u, ctr), []property{
		set("PIDs", []uint32{h.pid()}), set("Slice", slice), set("Delegate", true),
	})
	if err != nil {
		t.Fatal(err)
	}
	within(t, "the scope is there", func() bool {
		path, err := u.Manager.cgroupOf(t.Context(), scopeOf(u, ctr))
		return err == nil && path != "" && cgroup.At(u.Mount+path).Populated()
	})
	return h
}

// scopeOf is the name of a container's scope.
func scopeOf(u *Units, ctr string) string {
	return u.Naming.ScopePrefix(u.Instance) + "-" + ctr + ".scope"
}

// TestEndContainerOfAnotherName ends a container whose scope is called as another runtime's, by units that call theirs
// by their own names and by those: the key may have been changed in between.
func TestEndContainerOfAnotherName(t *testing.T) {
	u := real(t)
	for _, now := range []cgroup.Naming{cgroup.NamedBerth, cgroup.NamedCRIO} {
		u.Naming = cgroup.NamedContainerd
		pod, ctr, stranger := random(32), random(32), random(32)
		h, other := scope(t, u, u.podSlice(pod), ctr), scope(t, u, u.podSlice(pod), stranger)
		defer h.end()
		defer other.end()
		name, kept := scopeOf(u, ctr), scopeOf(u, stranger)
		u.Naming = now
		if ids, err := u.Containers(t.Context()); err != nil || len(ids) > 0 {
			t.Errorf("scopes that may be another runtime's are listed: %v %v", ids, err)
		}
		for range 2 { // again: nothing is there
			if err := u.EndContainer(t.Context(), ctr); err != nil {
				t.Error(err)
			}
		}
		within(t, "systemd has forgotten it", func() bool {
			found, err := u.Manager.units(t.Context(), name)
			return err == nil && len(found) == 0
		})
		if known, err := u.Manager.active(t.Context(), kept); !known || err != nil {
			t.Errorf("the scope of another container: %v %v", known, err)
		}
		if err := u.RemovePod(t.Context(), pod); err != nil {
			t.Error(err)
		}
	}
}

// TestLimitsOfAScope changes limits of a scope that has some that systemd was not told of, as an OCI runtime leaves it.
// Each change is exact, and changes nothing else.
func TestLimitsOfAScope(t *testing.T) {
	u := real(t)
	pod, ctr := random(32), random(32)
	h := scope(t, u, u.podSlice(pod), ctr)
	defer h.end()
	path, err := u.Manager.cgroupOf(t.Context(), scopeOf(u, ctr))
	if err != nil {
		t.Fatal(err)
	}
	now := map[string]string{
		"cpu.max": "1500 100000", "cpu.weight": "39", "memory.max": "67108864", "memory.swap.max": "0",
		"memory.oom.group": "1", "memory.high": "58720256",
	}
	for name, text := range now {
		if err := cgroup.Write(filepath.Join(u.Mount, path, name), text); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string) {
		t.Helper()
		for name, want := range now {
			data, err := os.ReadFile(filepath.Join(u.Mount, path, name))
			if got := strings.TrimSpace(string(data)); err != nil || got != want {
				t.Errorf("%s: %s is %q (%v), wanted %q", when, name, got, err, want)
			}
		}
	}
	group := u.podSlice(pod) + ":" + u.Naming.ScopePrefix(u.Instance) + ":" + ctr
	quota, period, memory := int64(15500), uint64(100000), int64(96<<20)
	for _, c := range []struct {
		want      specs.LinuxResources
		file, has string
	}{
		{specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: &quota, Period: &period}}, "cpu.max", "15500 100000"},
		{specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory}}, "memory.max", "100663296"},
		{specs.LinuxResources{Unified: map[string]string{"cpu.weight": "77"}}, "cpu.weight", "77"},
		{specs.LinuxResources{Unified: map[string]string{"memory.zswap.max": "0"}}, "memory.zswap.max", "0"},
	} {
		if _, err := os.Stat(filepath.Join(u.Mount, path, c.file)); err != nil {
			continue // a kernel without zswap
		}
		putBack, err := u.SetLimits(t.Context(), group, limits.Was{}, &c.want)
		if err != nil {
			t.Fatalf("%s: %v", c.file, err)
		}
		before := now[c.file]
		now[c.file] = c.has
		check(c.file)
		if before == "" {
			before = "max"
		}
		now[c.file] = before
		if err := putBack(); err != nil {
			t.Error(err)
		}
		check(c.file + ", put back")
	}
	if err := u.RemovePod(t.Context(), pod); err != nil {
		t.Error(err)
	}
}

func TestEndPod(t *testing.T) {
	u := real(t)
	pod, ctr := random(32), random(32)
	h := scope(t, u, u.podSlice(pod), ctr)
	defer h.end()
	if ids, err := u.Pods(t.Context()); err != nil || !slices.Equal(ids, []string{pod}) {
		t.Errorf("pods: %v %v", ids, err)
	}
	if ids, err := u.Containers(t.Context()); err != nil || !slices.Equal(ids, []string{ctr}) {
		t.Errorf("containers: %v %v", ids, err)
	}
	for range 2 { // again: nothing is there
		if err := u.RemovePod(t.Context(), pod); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	within(t, "its units are gone", func() bool {
		pods, err := u.Pods(t.Context())
		ctrs, err2 := u.Containers(t.Context())
		return err == nil && err2 == nil && len(pods)+len(ctrs) == 0
	})
}

// TestEndFailed has systemd take a scope for failed: what was in it had to be killed at a stop.
func TestEndFailed(t *testing.T) {
	u := real(t)
	pod, ctr := random(32), random(32)
	cmd := exec.Command("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	err := u.Manager.startScope(t.Context(), scopeOf(u, ctr), []property{
		set("PIDs", []uint32{uint32(cmd.Process.Pid)}), set("Slice", u.podSlice(pod)),
		set("TimeoutStopUSec", uint64(100_000)),
	})
	if err != nil {
		t.Fatal(err)
	}
	within(t, "the scope is there", func() bool {
		active, _ := u.Manager.active(t.Context(), scopeOf(u, ctr))
		return active
	})
	_ = exec.Command("systemctl", "stop", scopeOf(u, ctr)).Run() // it says that it failed
	if ids, err := u.Containers(t.Context()); err != nil || !slices.Equal(ids, []string{ctr}) {
		t.Errorf("the failed scope is not listed: %v %v", ids, err)
	}
	if err := u.EndContainer(t.Context(), ctr); err != nil {
		t.Error(err)
	}
	within(t, "systemd has forgotten it", func() bool {
		ids, err := u.Containers(t.Context())
		return err == nil && len(ids) == 0
	})
	if err := u.RemovePod(t.Context(), pod); err != nil {
		t.Error(err)
	}
}

// TestDelegated has a unit of its own run this test program.
func TestDelegated(t *testing.T) {
	real(t)
	if os.Getenv("BERTH_TEST_DELEGATED") != "" {
		own, err := Delegated("/sys/fs/cgroup")
		again, err2 := Delegated("/sys/fs/cgroup")
		now, err3 := cgroup.Own("/sys/fs/cgroup")
		t.Logf("delegated %q %v, again %q %v, now in %q %v", own, err, again, err2, now, err3)
		if own != os.Getenv("BERTH_TEST_DELEGATED") || again != own || now != own+"/"+leaf {
			if own != "" || os.Getenv("BERTH_TEST_DELEGATED") != "none" {
				t.Error("that is not it")
			}
		}
		return
	}
	self, _ := os.Executable()
	for delegate, want := range map[string]string{
		"yes": "/sys/fs/cgroup/system.slice/berth-test-unit.service", "no": "none",
	} {
		out, err := exec.Command("systemd-run", "--wait", "--pipe", "--quiet", "--unit=berth-test-unit.service",
			"-p", "Delegate="+delegate, "-E", "BERTH_TEST_DELEGATED="+want,
			self, "-test.run=^TestDelegated$", "-test.v").CombinedOutput()
		if err != nil {
			t.Errorf("Delegate=%s: %v\n%s", delegate, err, out)
		}
	}
}

// TestNothingThere asks over fresh connections for what is not there.
func TestNothingThere(t *testing.T) {
	u := real(t)
	s := monitorScope(t, u)
	for range 20 {
		m := &Manager{}
		for _, name := range []string{ownSlice(u.Instance), u.podSlice(id), scopeOf(u, id), s.name()} {
			if err := m.stop(t.Context(), name); err != nil {
				t.Error(err)
			}
			if err := m.forget(t.Context(), name); err != nil {
				t.Error(err)
			}
			if known, err := m.active(t.Context(), name); known || err != nil {
				t.Errorf("%s is active: %v, %v", name, known, err)
			}
		}
		m.Close()
	}
}

// TestRest wants no connection kept by a manager that nobody uses.
func TestRest(t *testing.T) {
	u := real(t)
	if _, err := u.Pods(t.Context()); err != nil {
		t.Fatal(err)
	}
	u.Manager.mu.Lock()
	kept := u.Manager.conn != nil
	u.Manager.mu.Unlock()
	if !kept {
		t.Error("a connection is not kept for the next call")
	}
	within(t, "the connection is closed", func() bool {
		u.Manager.mu.Lock()
		defer u.Manager.mu.Unlock()
		return u.Manager.conn == nil
	})
	if _, err := u.Pods(t.Context()); err != nil {
		t.Error(err)
	}
}
