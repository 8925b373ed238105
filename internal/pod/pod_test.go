package pod

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/bundle"
	"berth/internal/cgroup"
	"berth/internal/cgroup/limits"
	"berth/internal/fail"
	"berth/internal/network"
	"berth/internal/op"
	"berth/internal/process"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/test/timeouts"
)

// The tests of this package look at what no real runtime makes happen on demand: callers that race, give up and come
// back, undos that fail, records of another boot. Everything else is shown end to end with real parts in test/e2e.

// wires is a network whose plugins do as the test says.
type wires struct {
	mu       sync.Mutex
	attached map[string]int
	adds     int
	hold     chan struct{} // an ADD waits for it
	delErr   error
	deadline time.Duration // 5 min where it is none
}

func (w *wires) Deadline() time.Duration { return cmp.Or(w.deadline, 5*time.Minute) }

func (w *wires) Attach(ctx context.Context, p network.Pod) (network.Result, error) {
	w.mu.Lock()
	w.adds++
	w.attached[p.ID]++
	hold := w.hold
	w.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return network.Result{}, context.Cause(ctx)
		}
	}
	return network.Result{IPs: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}, nil
}

func (w *wires) Detach(_ context.Context, p network.Pod) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.delErr != nil {
		return w.delErr
	}
	delete(w.attached, p.ID)
	return nil
}

func (w *wires) Attachments() ([]string, error) { return nil, nil }

func (w *wires) state() (adds, attached int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.adds, len(w.attached)
}

func (w *wires) failDel(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delErr = err
}

// driver is a runtime whose processes are entries in a map.
type driver struct {
	Runtime // what a test does not need panics

	mu      sync.Mutex
	pods    *Pods
	live    map[string]string // container: pod
	deaf    bool              // signals other than a kill are not heeded
	starved bool              // the kernel has killed a process of each container for memory, and the container went on
	killed  int
	signals []int
	inv     runtime.Inventory
	created runtime.Create // the last one
	started time.Duration  // the bound of the last start
	silent  int            // so many starts find no monitor that answers
}

func (d *driver) Launch(context.Context, string) error   { return nil }
func (d *driver) Shutdown(context.Context, string) error { return nil }
func (d *driver) Sweep(context.Context, func(string) bool, func(string) (runtime.Handler, error)) error {
	return nil
}
func (d *driver) Delete(context.Context, string, string, runtime.Handler) error { return nil }
func (d *driver) Adopt(context.Context, string) (runtime.Inventory, error)      { return d.inv, nil }

func (d *driver) Start(_ context.Context, _, _ string, _ runtime.Log, deadline time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.started = deadline
	if d.silent > 0 {
		d.silent--
		return fail.New(errdefs.ErrUnavailable, "no monitor answers")
	}
	return nil
}

func (d *driver) Create(_ context.Context, pod string, c runtime.Create) (runtime.Process, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live[c.Container], d.created = pod, c
	start, err := process.Start(1) // it lives as long as any test
	return runtime.Process{PID: 1, StartTime: start}, err
}

func (d *driver) Signal(_ context.Context, pod, ctr string, sig int) error {
	d.mu.Lock()
	d.signals = append(d.signals, sig)
	deaf := d.deaf
	d.mu.Unlock()
	if !deaf {
		d.end(pod, ctr, runtime.Exit{Code: 128 + int32(sig), OOMKilled: d.starved && sig == int(unix.SIGKILL)})
	}
	return nil
}

func (d *driver) KillAll(_ context.Context, pod, ctr string) error {
	d.mu.Lock()
	d.killed++
	d.mu.Unlock()
	d.end(pod, ctr, runtime.Exit{Code: 137, OOMKilled: d.starved})
	return nil
}

func (d *driver) end(pod, ctr string, e runtime.Exit) {
	d.mu.Lock()
	_, alive := d.live[ctr]
	delete(d.live, ctr)
	d.mu.Unlock()
	if alive {
		e.FinishedAt = time.Now()
		go d.pods.Exited(pod, ctr, e)
	}
}

type shelf struct{}

func (shelf) Use(asked *runtimeapi.ImageSpec) (bundle.Image, func(), error) {
	if asked.GetImage() != "img" {
		return bundle.Image{}, func() {}, errdefs.ErrNotFound
	}
	return bundle.Image{ID: "sha256:1", Layers: []string{"l"}, Dirs: []string{os.TempDir()}}, func() {}, nil
}

type bench struct {
	*Pods
	net *wires
	drv *driver
	cfg Config

	unconfigured atomic.Bool // the handler was taken out of the configuration
}

func open(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{net: &wires{attached: map[string]int{}}, drv: &driver{live: map[string]string{}}}
	b.cfg = Config{
		Layout: sandbox.Layout{Root: filepath.Join(dir, "r"), State: filepath.Join(dir, "s"), Instance: "berth-test",
			NetNS: filepath.Join(dir, "netns")},
		Boot: "boot-1", Runtime: b.drv, Network: b.net, UserNS: func(string) error { return nil },
		Dirty: func(string) {}, Log: slog.New(slog.DiscardHandler), Retry: op.Backoff{First: 5 * time.Millisecond,
			Max: 5 * time.Millisecond},
	}
	driver := limits.Direct{Direct: cgroup.Direct{Instance: "berth-test"}}
	b.cfg.Cgroups = driver
	b.cfg.Bundle = bundle.Builder{
		Images: shelf{}, Cgroups: driver, Handlers: bundle.Handlers{Find: b.handler, Spec: b.handlerSpec},
	}
	if err := os.MkdirAll(b.cfg.NetNS, 0o755); err != nil {
		t.Fatal(err)
	}
	b.reopen(t)
	t.Cleanup(func() {
		b.net.failDel(nil)
		for _, r := range b.Catalog.List() {
			if err := b.Remove(context.Background(), r.ID); err != nil {
				t.Errorf("remove %s: %v", r.ID, err)
			}
		}
		b.end(t)
	})
	return b
}

// handler finds the one runtime handler.
func (b *bench) handler(name string) (runtime.Handler, error) {
	if name != "" && (name != "runc" || b.unconfigured.Load()) {
		return runtime.Handler{}, errdefs.ErrNotFound
	}
	return runtime.Handler{Name: "runc"}, nil
}

// reopen is a restart of the daemon.
func (b *bench) reopen(t *testing.T) {
	t.Helper()
	if b.Pods != nil {
		b.end(t)
	}
	pods, err := Open(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Pods, b.drv.pods = pods, pods
	<-pods.Recover()
}

func podConfig(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

func wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(timeouts.For(10 * time.Second)); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not seen in 10 s: %s", what)
		}
	}
}

func TestSameRequestJoinsAndGetsOneAnswer(t *testing.T) {
	b := open(t)
	b.net.hold = make(chan struct{})
	ids := make(chan sandbox.ID, 3)
	for range 3 {
		go func() {
			id, err := b.Run(t.Context(), podConfig("a"), "")
			if err != nil {
				t.Error(err)
			}
			ids <- id
		}()
	}
	wait(t, "an ADD", func() bool { adds, _ := b.net.state(); return adds == 1 })
	if n := len(b.Catalog.List()); n != 0 {
		t.Errorf("a pod in the making is listed: %d", n)
	}
	close(b.net.hold)
	first := <-ids
	for range 2 {
		if id := <-ids; id != first {
			t.Errorf("two pods for one request: %s and %s", first, id)
		}
	}
	if id, err := b.Run(t.Context(), podConfig("a"), ""); err != nil || id != first {
		t.Errorf("asked again: %s, %v", id, err)
	}
	if adds, _ := b.net.state(); adds != 1 {
		t.Errorf("%d ADDs for one pod", adds)
	}
}

func TestCallerGivesUpAndAsksAgain(t *testing.T) {
	b := open(t)
	b.net.hold = make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := b.Run(ctx, podConfig("a"), ""); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "ask again") {
		t.Fatalf("got %v", err)
	}
	close(b.net.hold)
	if _, err := b.Run(t.Context(), podConfig("a"), ""); err != nil {
		t.Fatal(err)
	}
	if adds, _ := b.net.state(); adds != 1 {
		t.Errorf("%d ADDs: the second call did not join the first", adds)
	}
}

func TestAnotherRequestUndoesOneInFlight(t *testing.T) {
	b := open(t)
	b.net.hold = make(chan struct{})
	first := make(chan error)
	go func() { _, err := b.Run(t.Context(), podConfig("a"), ""); first <- err }()
	wait(t, "an ADD", func() bool { adds, _ := b.net.state(); return adds == 1 })
	other := podConfig("a")
	other.Hostname = "other"
	second := make(chan error)
	go func() { _, err := b.Run(t.Context(), other, ""); second <- err }()
	var se *op.SupersededError
	if err := <-first; !errors.As(err, &se) {
		t.Errorf("first: %v", err)
	}
	close(b.net.hold)
	if err := <-second; err != nil {
		t.Errorf("second: %v", err)
	}
	if _, attached := b.net.state(); attached != 1 || len(b.Catalog.List()) != 1 {
		t.Errorf("%d attached, %d listed, want one", attached, len(b.Catalog.List()))
	}
	if err := func() error {
		_, err := b.Run(t.Context(), podConfig("a"),
			"")
		return err
	}(); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a pod in use was replaced: %v", err)
	}
}

func TestStopTurnsACreateIntoAnUndo(t *testing.T) {
	b := open(t)
	b.net.hold = make(chan struct{})
	first := make(chan error)
	go func() { _, err := b.Run(t.Context(), podConfig("a"), ""); first <- err }()
	wait(t, "an ADD", func() bool { adds, _ := b.net.state(); return adds == 1 })
	var id sandbox.ID
	for id = range b.Catalog.index.Load().pods {
	}
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err == nil {
		t.Error("the create succeeded although it was stopped")
	}
	if _, attached := b.net.state(); attached != 0 || len(b.Catalog.index.Load().pods) != 0 {
		t.Error("something is left")
	}
}

func TestAbandonedCreateIsUndone(t *testing.T) {
	b := open(t)
	b.Pods.cfg.Abandon = 10 * time.Millisecond
	b.net.hold = make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, _ = b.Run(ctx, podConfig("a"), "")
	wait(t, "the undo", func() bool {
		_, attached := b.net.state()
		return attached == 0 &&
			len(b.Catalog.index.Load().pods) == 0
	})
}

func TestStuckUndoIsSeenAndRetried(t *testing.T) {
	b := open(t)
	id, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	b.net.failDel(errors.New("the plugin is gone"))
	if err := b.Stop(t.Context(), id); err == nil ||
		!strings.Contains(err.Error(), "undo step network: the plugin is gone") {
		t.Fatalf("got %v", err)
	}
	r, err := b.Catalog.Get(id)
	if err != nil || r.State != sandbox.Stopping || r.Stuck == nil || len(b.Problems()) != 1 {
		t.Fatalf("got %+v, %v", r, err)
	}
	if _, err := os.Stat(b.cfg.NetNSPin(id)); err != nil {
		t.Errorf("the namespace did not outlive the DEL: %v", err)
	}
	b.net.failDel(nil)
	wait(t, "the retry", func() bool { r, _ := b.Catalog.Get(id); return r.State == sandbox.Stopped && r.Stuck == nil })
}

func TestFailedCreateWithStuckUndoFreesTheName(t *testing.T) {
	b := open(t)
	b.net.failDel(errors.New("stuck"))
	b.net.hold = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() { _, err := b.Run(ctx, podConfig("a"), ""); first <- err }()
	wait(t, "an ADD", func() bool { adds, _ := b.net.state(); return adds == 1 })
	var stuck sandbox.ID
	for stuck = range b.Catalog.index.Load().pods {
	}
	if err := b.Stop(t.Context(), stuck); err == nil {
		t.Error("Stop of a pod whose undo is stuck succeeded")
	}
	<-first
	cancel()
	close(b.net.hold)
	second, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil || second == stuck {
		t.Fatalf("the name is not free: %v", err)
	}
	if r, err := b.Catalog.Get(stuck); err != nil || r.Listed() == false {
		t.Errorf("the stuck pod is not listed: %v", err)
	}
	b.net.failDel(nil)
	wait(t, "the undo", func() bool { _, err := b.Catalog.Get(stuck); return err != nil })
	if _, err := b.Catalog.Get(second); err != nil {
		t.Errorf("the second pod went with the first: %v", err)
	}
}

func started(t *testing.T, b *bench) (sandbox.ID, sandbox.ID) {
	t.Helper()
	return startedAs(t, b, podConfig("a"))
}

// startedAs is started for a pod of that configuration.
func startedAs(t *testing.T, b *bench, cfg *runtimeapi.PodSandboxConfig) (sandbox.ID, sandbox.ID) {
	t.Helper()
	pod, err := b.Run(t.Context(), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	ctr, err := b.Create(t.Context(), pod, containerConfig("c"))
	if err == nil {
		err = b.Start(t.Context(), ctr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pod, ctr
}

func TestShorterStopTightensALongerOne(t *testing.T) {
	b := open(t)
	_, ctr := started(t, b)
	b.drv.deaf = true
	long := make(chan error, 1)
	go func() { long <- b.StopContainer(t.Context(), ctr, time.Hour) }()
	wait(t, "the stop signal", func() bool { b.drv.mu.Lock(); defer b.drv.mu.Unlock(); return len(b.drv.signals) == 1 })
	if err := b.StopContainer(t.Context(), ctr, 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := <-long; err != nil {
		t.Fatal(err)
	}
	if _, c, _ := b.Catalog.GetContainer(ctr); c.State != sandbox.Exited || c.ExitCode != 137 {
		t.Errorf("got %+v", c)
	}
}

func TestRemoveHurriesAStop(t *testing.T) {
	b := open(t)
	_, ctr := started(t, b)
	b.drv.deaf = true
	long := make(chan error, 1)
	go func() { long <- b.StopContainer(t.Context(), ctr, time.Hour) }()
	wait(t, "the stop signal", func() bool { b.drv.mu.Lock(); defer b.drv.mu.Unlock(); return len(b.drv.signals) == 1 })
	if err := b.RemoveContainer(t.Context(), ctr); err != nil {
		t.Fatal(err)
	}
	if err := <-long; err != nil {
		t.Errorf("the stop that was overtaken: %v", err)
	}
	if _, _, err := b.Catalog.GetContainer(ctr); !errdefs.IsNotFound(err) {
		t.Errorf("still there: %v", err)
	}
}

func TestRestartFindsExits(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	b.drv.inv = runtime.Inventory{Containers: map[string]runtime.Found{
		string(ctr): {State: runtime.Exited, Exit: &runtime.Exit{Code: 3, FinishedAt: time.Now()}},
	}}
	b.reopen(t)
	if _, c, err := b.Catalog.GetContainer(ctr); err != nil || c.State != sandbox.Exited || c.ExitCode != 3 ||
		c.Reason != sandbox.ReasonError {
		t.Fatalf("got %+v, %v", c, err)
	}
	if r, _ := b.Catalog.Get(pod); r.State != sandbox.Ready {
		t.Errorf("pod is %s", r.State)
	}
}

func TestAnotherBoot(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	b.cfg.Boot = "boot-2"
	b.unmount(t, pod)
	unmountForTest(t, b.cfg.Rootfs(pod, ctr))
	b.reopen(t)
	_, c, err := b.Catalog.GetContainer(ctr)
	if err != nil || c.State != sandbox.Exited || c.ExitCode != sandbox.ExitUnknown ||
		!strings.Contains(c.Message, "restarted") {
		t.Fatalf("got %+v, %v", c, err)
	}
	wait(t, "the pod to be stopped", func() bool { r, _ := b.Catalog.Get(pod); return r.State == sandbox.Stopped })
	if _, attached := b.net.state(); attached != 0 {
		t.Error("the network was not detached after the boot")
	}
}

func TestOneBadRecordStopsNothing(t *testing.T) {
	b := open(t)
	good, _ := started(t, b)
	bad, err := b.Run(t.Context(), podConfig("bad"), "")
	if err != nil {
		t.Fatal(err)
	}
	path := b.cfg.Record(bad)
	whole, _ := os.ReadFile(path)
	if err := os.WriteFile(path, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	b.drv.inv = runtime.Inventory{Containers: map[string]runtime.Found{}}
	b.reopen(t)
	if _, err := b.Catalog.Get(good); err != nil {
		t.Errorf("the good pod: %v", err)
	}
	if p := b.Problems(); len(p) == 0 || !strings.Contains(p[0].What, "damaged") {
		t.Errorf("problems: %v", p)
	}
	if !b.Catalog.owned(string(bad)) {
		t.Error("what is named after a damaged record is up for sweeping")
	}
	if _, err := os.Stat(b.cfg.NetNSPin(bad)); err != nil {
		t.Errorf("the sweep took it: %v", err)
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil { // mended by hand
		t.Fatal(err)
	}
	b.reopen(t)
	if _, err := b.Catalog.Get(bad); err != nil {
		t.Errorf("mended: %v", err)
	}
}

func TestRequestsRefused(t *testing.T) {
	b := open(t)
	pod, _ := started(t, b)
	long := podConfig("h")
	long.Hostname = strings.Repeat("h", 65)
	sysctl := podConfig("s")
	sysctl.Linux.Sysctls = map[string]string{"kernel.panic": "1"}
	for name, c := range map[string]struct {
		err  func() error
		kind func(error) bool
	}{
		"no metadata": {func() error { _, err := b.Run(t.Context(), &runtimeapi.PodSandboxConfig{}, ""); return err },
			errdefs.IsInvalidArgument},
		"unknown handler": {func() error { _, err := b.Run(t.Context(), podConfig("u"), "kata"); return err },
			errdefs.IsNotFound},
		"long hostname": {func() error { _, err := b.Run(t.Context(), long, ""); return err }, errdefs.IsInvalidArgument},
		"host sysctl":   {func() error { _, err := b.Run(t.Context(), sysctl, ""); return err }, errdefs.IsInvalidArgument},
		"no such pod": {func() error {
			_, err := b.Create(t.Context(), sandbox.NewID(),
				containerConfig("c"))
			return err
		}, errdefs.IsNotFound},
		"no such image": {func() error {
			c := containerConfig("i")
			c.Image.Image = "none"
			_, err := b.Create(t.Context(), pod, c)
			return err
		}, errdefs.IsNotFound},
		"log path escapes": {func() error {
			c := containerConfig("l")
			c.LogPath = "../../etc/x"
			_, err := b.Create(t.Context(), pod, c)
			return err
		}, errdefs.IsInvalidArgument},
		"no such container": {func() error { return b.Start(t.Context(), sandbox.NewID()) }, errdefs.IsNotFound},
	} {
		if err := c.err(); err == nil || !c.kind(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, err := range []error{b.Stop(t.Context(), sandbox.NewID()), b.Remove(t.Context(), sandbox.NewID()),
		b.StopContainer(t.Context(), sandbox.NewID(), 0), b.RemoveContainer(t.Context(), sandbox.NewID())} {
		if err != nil {
			t.Errorf("stop or removal of what is not there: %v", err)
		}
	}
	if n := len(b.Catalog.index.Load().pods); n != 1 {
		t.Errorf("refused requests left %d pods", n-1)
	}
}
