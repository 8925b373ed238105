package session

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// shown is a Finder of one pod, which is adopted when a test says so.
type shown struct {
	record  *sandbox.Record
	adopted chan struct{}
	learned *sandbox.Record // the record after the adoption; nil where it is the same
}

func (f *shown) Pod(id sandbox.ID) (*sandbox.Record, error) {
	if id != f.record.ID {
		return nil, sandbox.NotFound("pod sandbox", id)
	}
	return f.record, nil
}

func (f *shown) Container(id sandbox.ID) (*sandbox.Record, *sandbox.Container, error) {
	if c := f.record.Container(id); c != nil {
		return f.record, c, nil
	}
	return nil, nil, sandbox.NotFound("container", id)
}

func (f *shown) Adopted(ctx context.Context, id sandbox.ID) (*sandbox.Record, error) {
	select {
	case <-f.adopted:
		if f.learned != nil {
			f.record = f.learned
		}
		return f.Pod(id)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// driver notes what it is asked for.
type driver struct {
	calls []string
	err   error
	out   string
}

func (d *driver) Exec(_ context.Context, _, ctr string, e runtime.Exec) (runtime.ExecResult, error) {
	d.calls = append(d.calls, "exec "+ctr+" "+e.Process.Args[0])
	_, _ = e.Stdout.Write([]byte(d.out))
	return runtime.ExecResult{ExitCode: 3}, d.err
}

func (d *driver) Session(_ context.Context, _, ctr string, s runtime.Session) (int, error) {
	d.calls = append(d.calls, "session "+ctr+" "+s.Process.Args[0])
	return 4, d.err
}

func (d *driver) Attach(_ context.Context, _, ctr string, _ runtime.Attach) error {
	d.calls = append(d.calls, "attach "+ctr)
	return d.err
}

func (d *driver) Resize(_ context.Context, _, ctr string, _, _ uint16) error {
	d.calls = append(d.calls, "resize "+ctr)
	return d.err
}

func (d *driver) ReopenLog(_ context.Context, _, ctr string, log runtime.Log) error {
	d.calls = append(d.calls, "reopen "+ctr+" "+log.Dir+"/"+log.Path)
	return d.err
}

const bundleSpec = `{"process": {"args": ["main"], "cwd": "/"}, "linux": {"resources": {"cpu": {"shares": 2}}}}`

// open makes Sessions of one pod with a container in each state, without anything else of the daemon.
func open(t *testing.T) (*Sessions, *shown, *driver) {
	t.Helper()
	cfg, err := sandbox.NewPodConfig(&runtimeapi.PodSandboxConfig{
		LogDirectory: "/logs", Metadata: &runtimeapi.PodSandboxMetadata{Name: "p"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctr, err := sandbox.NewContainerConfig(&runtimeapi.ContainerConfig{LogPath: "0.log"})
	if err != nil {
		t.Fatal(err)
	}
	r := &sandbox.Record{ID: "p", State: sandbox.Ready, Config: cfg}
	layout := sandbox.Layout{State: t.TempDir(), NetNS: "/netns", Instance: "b"}
	for _, state := range []sandbox.State{sandbox.Creating, sandbox.Created, sandbox.Running, sandbox.Exited} {
		c := &sandbox.Container{ID: sandbox.ID(state), State: state, Config: ctr}
		r.Containers = append(r.Containers, c)
		path := layout.BundleSpec(r.ID, c.ID)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(bundleSpec),
			0o644)); err != nil {
			t.Fatal(err)
		}
	}
	f, d := &shown{record: r, adopted: make(chan struct{})}, &driver{out: "said"}
	close(f.adopted)
	return &Sessions{
		Pods: f, Runtime: d, Layout: layout, Log: slog.New(slog.DiscardHandler),
		Handler: func(*sandbox.Record) (runtime.Handler, error) { return runtime.Handler{Name: "h"}, nil },
	}, f, d
}

// TestWhatMayBeReached has clients ask for everything of a container in each state, and counts what reaches the
// runtime.
func TestWhatMayBeReached(t *testing.T) {
	s, _, d := open(t)
	ask := map[string]func(id sandbox.ID) error{
		"exec": func(id sandbox.ID) error {
			out, err := s.ExecSync(t.Context(), id, []string{"cmd"}, 0)
			if err == nil && (out.ExitCode != 3 || string(out.Stdout) != "said") {
				t.Errorf("exec: %+v", out)
			}
			return err
		},
		"session": func(id sandbox.ID) error {
			code, err := s.Session(t.Context(), id, Session{Cmd: []string{"cmd"}})
			if err == nil && code != 4 {
				t.Errorf("session: %d", code)
			}
			return err
		},
		"running":    func(id sandbox.ID) error { return s.Running(t.Context(), id) },
		"attach":     func(id sandbox.ID) error { return s.Attach(t.Context(), id, runtime.Attach{}) },
		"attachable": func(id sandbox.ID) error { return s.Attachable(t.Context(), id) },
		"resize":     func(id sandbox.ID) error { return s.Resize(t.Context(), id, 80, 24) },
		"reopen":     func(id sandbox.ID) error { return s.ReopenLog(t.Context(), id) },
	}
	early := map[string]bool{"attach": true, "attachable": true, "resize": true} // a client may, before it starts it
	for what, fn := range ask {
		for _, state := range []sandbox.State{sandbox.Creating, sandbox.Created, sandbox.Running, sandbox.Exited} {
			may := state == sandbox.Running || state == sandbox.Created && early[what]
			d.calls = nil
			err := fn(sandbox.ID(state))
			if may && err != nil || !may && (!errdefs.IsFailedPrecondition(err) || len(d.calls) > 0) {
				t.Errorf("%s of a container that is %s: %v, calls %q", what, state, err, d.calls)
			}
		}
		if err := fn("nobody"); !errdefs.IsNotFound(err) {
			t.Errorf("%s of no container: %v", what, err)
		}
	}
	d.calls = nil
	if err := s.ReopenLog(t.Context(), "running"); err != nil || d.calls[0] != "reopen running /logs/0.log" {
		t.Errorf("%q, %v", d.calls, err)
	}
}

// TestNothingBeforeAdoption asks of a pod that the daemon does not know yet what runs of: the caller waits, and nothing
// is asked of the runtime.
func TestNothingBeforeAdoption(t *testing.T) {
	s, f, d := open(t)
	f.adopted = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, err := range map[string]error{
		"running": s.Running(ctx, "running"), "attach": s.Attach(ctx, "running", runtime.Attach{}),
		"reopen": s.ReopenLog(ctx, "running"),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.NetNS(ctx, "p"); !errors.Is(err, context.Canceled) || len(d.calls) > 0 {
		t.Errorf("the network namespace: %v; calls %q", err, d.calls)
	}
}

// TestStatesAfterTheAdoption has the adoption find out that a container runs which the record has as starting, and that
// one has ended, or is gone, which the record has as running: what is asked for goes by that.
func TestStatesAfterTheAdoption(t *testing.T) {
	for _, c := range []struct {
		before, after sandbox.State
		may           bool
	}{
		{sandbox.Starting, sandbox.Running, true}, {sandbox.Running, sandbox.Exited, false}, {sandbox.Running, "", false},
	} {
		s, f, d := open(t)
		f.record.Container("running").State = c.before
		f.learned = f.record.Clone()
		if c.after == "" {
			f.learned.Containers = nil
		} else if err := f.learned.Edit("running", func(ctr *sandbox.Container) error {
			ctr.State = c.after
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		was := f.record
		for what, fn := range map[string]func() error{
			"running": func() error { return s.Running(t.Context(), "running") },
			"reopen":  func() error { return s.ReopenLog(t.Context(), "running") },
		} {
			f.record = was
			if err := fn(); c.may && err != nil || !c.may && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s of a container that is %s, and was found %q: %v", what, c.before, c.after, err)
			}
		}
		if c.may != (len(d.calls) > 0) {
			t.Errorf("of a container that is %s, and was found %q, the runtime is asked for %q", c.before, c.after, d.calls)
		}
	}
}

// TestPortsOfAPod asks where the ports of a pod are: where its network namespace is pinned, while it is ready.
func TestPortsOfAPod(t *testing.T) {
	s, f, _ := open(t)
	if at, err := s.NetNS(t.Context(), "p"); err != nil || at != "/netns/b-p" {
		t.Errorf("%q, %v", at, err)
	}
	if _, ok, err := s.Sandbox("p"); ok || err != nil {
		t.Errorf("a pod without a sandbox has one, %v", err)
	}
	f.record.Init.PID, f.record.Container("running").Process.PID = 7, 7
	if h, ok, err := s.Sandbox("p"); !ok || err != nil || h.Name != "h" {
		t.Errorf("%+v, %v, %v", h, ok, err)
	}
	f.record.State = sandbox.Stopped
	if _, err := s.NetNS(t.Context(), "p"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a stopped pod: %v", err)
	}
}

// TestSpecHasTheLimitsInForce changes the limits of a container: its spec has them, and what they do not mention stays.
func TestSpecHasTheLimitsInForce(t *testing.T) {
	s, f, _ := open(t)
	limits, err := sandbox.NewResources(&runtimeapi.LinuxContainerResources{CpuPeriod: 10000, CpuQuota: 5000})
	if err != nil {
		t.Fatal(err)
	}
	shares := func(sp *specs.Spec) uint64 { return *sp.Linux.Resources.CPU.Shares }
	sp, err := s.RuntimeSpec("running")
	if err != nil || shares(sp) != 2 || sp.Linux.Resources.CPU.Quota != nil {
		t.Errorf("as it was made: %+v, %v", sp, err)
	}
	f.record.Container("running").Resources = limits
	sp, err = s.RuntimeSpec("running")
	if err != nil || shares(sp) != 2 || *sp.Linux.Resources.CPU.Quota != 5000 ||
		*sp.Linux.Resources.CPU.Period != 10000 {
		t.Errorf("once it was changed: %+v, %v", sp, err)
	}
}

// TestLimitsThatCannotBeRead has the record of an earlier release, which recorded whatever limits plugins set: commands
// run all the same, and the spec is the one that the runtime was given, which has these limits.
func TestLimitsThatCannotBeRead(t *testing.T) {
	s, f, d := open(t)
	limits, err := sandbox.NewResources(&runtimeapi.LinuxContainerResources{CpusetCpus: "0-15:2/4"})
	if err != nil {
		t.Fatal(err)
	}
	f.record.Container("running").Resources = limits
	if sp, err := s.RuntimeSpec("running"); err != nil || *sp.Linux.Resources.CPU.Shares != 2 {
		t.Errorf("its spec: %+v, %v", sp, err)
	}
	if _, err := s.ExecSync(t.Context(), "running", []string{"true"}, 0); err != nil {
		t.Errorf("a probe: %v", err)
	}
	if _, err := s.Session(t.Context(), "running", Session{Cmd: []string{"true"}}); err != nil {
		t.Errorf("a session: %v", err)
	}
	if len(d.calls) != 2 {
		t.Errorf("the driver was asked for %v", d.calls)
	}
}

// TestLimitsOfTheBaseStay has limits in force beside those that the base of a handler has put into the spec.
func TestLimitsOfTheBaseStay(t *testing.T) {
	pages := func(size string, limit uint64) specs.LinuxHugepageLimit {
		return specs.LinuxHugepageLimit{Pagesize: size, Limit: limit}
	}
	given := &specs.LinuxResources{
		Unified:        map[string]string{"cgroup.max.depth": "3", "memory.high": "1"},
		HugepageLimits: []specs.LinuxHugepageLimit{pages("1GB", 1), pages("2MB", 1)},
	}
	overlay(given, &specs.LinuxResources{
		Unified:        map[string]string{"memory.high": "2"},
		HugepageLimits: []specs.LinuxHugepageLimit{pages("2MB", 2), pages("64KB", 2)},
	})
	if want := map[string]string{"cgroup.max.depth": "3", "memory.high": "2"}; !maps.Equal(given.Unified, want) {
		t.Errorf("%v, wanted %v", given.Unified, want)
	}
	want := []specs.LinuxHugepageLimit{pages("1GB", 1), pages("2MB", 2), pages("64KB", 2)}
	if !slices.Equal(given.HugepageLimits, want) {
		t.Errorf("%v, wanted %v", given.HugepageLimits, want)
	}
}
