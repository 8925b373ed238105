package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/record"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/test/timeouts"
)

// end ends the daemon, and waits for what a real one would take with it.
func (b *bench) end(t *testing.T) {
	t.Helper()
	b.Close()
	idle := func(p *pod) bool {
		p.containers.mu.Lock()
		defer p.containers.mu.Unlock()
		for _, l := range p.containers.of {
			if l.lane.Busy() != "" {
				return false
			}
		}
		return p.lane.Busy() == ""
	}
	for _, p := range b.Catalog.index.Load().pods {
		wait(t, "the end of what was under way", func() bool { return idle(p) })
	}
	persistAll(b.Catalog.index.Load()) // an exit is told before it is written
}

// A daemon that is killed, or finds no room, while it notes the boot must not make the next one throw away what lives.
func TestTornBootMarkKeepsTheStateOfThisBoot(t *testing.T) {
	b := open(t)
	pod, _ := started(t, b)
	mark := filepath.Join(b.cfg.State, "boot")
	before, err := os.Stat(mark)
	if err != nil {
		t.Fatal(err)
	}
	b.reopen(t)
	if after, err := os.Stat(mark); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("the mark of the same boot was written again: %v", err)
	}
	if err := os.Truncate(mark, 0); err != nil {
		t.Fatal(err)
	}
	keep := filepath.Join(b.cfg.Run(pod), "keep")
	if err := os.WriteFile(keep, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.end(t)
	if first, err := freshState(&b.cfg); err != nil || first {
		t.Fatalf("first start of a boot: %v, %v", first, err)
	}
	if _, err := os.Stat(keep); err != nil {
		t.Errorf("the run directory of a live pod was cleared: %v", err)
	}
	if text, _ := os.ReadFile(mark); string(text) != b.cfg.Boot {
		t.Errorf("the mark says %q", text)
	}
	b.reopen(t)
}

// What is mounted below the state directory is not entered, whatever the mark says.
func TestStateOfAnotherBootIsNotClearedThroughAMount(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	inside := filepath.Join(b.cfg.Rootfs(pod, ctr), "inside")
	if err := os.WriteFile(inside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.end(t)
	cfg := b.cfg
	cfg.Boot = "boot-2"
	if _, err := freshState(&cfg); err == nil {
		t.Error("the state was cleared although something is mounted in it")
	}
	if _, err := os.Stat(inside); err != nil {
		t.Errorf("a container's file was removed through its mount: %v", err)
	}
	b.reopen(t)
}

// stubborn is a driver that cannot delete a container until it is told to.
type stubborn struct {
	*driver
	allowed *atomic.Bool
}

func (d stubborn) Delete(context.Context, string, string, runtime.Handler) error {
	if d.allowed.Load() {
		return nil
	}
	return errors.New("the runtime hangs")
}

func hinder(t *testing.T, b *bench) *atomic.Bool {
	t.Helper()
	allowed := &atomic.Bool{}
	allowed.Store(true)
	b.cfg.Runtime = stubborn{b.drv, allowed}
	b.reopen(t)
	t.Cleanup(func() { allowed.Store(true) })
	return allowed
}

// A removal that got stuck is tried again, also when the clearing away of the process was stuck before it.
func TestRemovalThatFollowsAStuckReapIsRetried(t *testing.T) {
	b := open(t)
	allowed := hinder(t, b)
	_, ctr := started(t, b)
	allowed.Store(false)
	if err := b.StopContainer(t.Context(), ctr, 0); err != nil {
		t.Fatal(err)
	}
	wait(t, "a stuck reap", func() bool { _, c, _ := b.Catalog.GetContainer(ctr); return c.Stuck != nil })
	if err := b.RemoveContainer(t.Context(), ctr); err == nil {
		t.Fatal("the removal succeeded")
	}
	time.Sleep(20 * time.Millisecond) // a few tries
	allowed.Store(true)
	wait(t, "the removal", func() bool { _, _, err := b.Catalog.findContainer(ctr); return err != nil })
}

// A restarted daemon goes on trying what was stuck, however its own first try ends.
func TestRestartRetriesAStuckContainer(t *testing.T) {
	b := open(t)
	allowed := hinder(t, b)
	pod, ctr := started(t, b)
	allowed.Store(false)
	if err := b.RemoveContainer(t.Context(), ctr); err == nil {
		t.Fatal("the removal succeeded")
	}
	b.reopen(t)
	tries := func() int {
		r, _ := b.Catalog.Get(pod)
		if c := r.Container(ctr); c != nil && c.Stuck != nil {
			return c.Stuck.Tries
		}
		return 0
	}
	was := tries()
	wait(t, "further tries", func() bool { return tries() > was+3 })
	allowed.Store(true)
	wait(t, "the removal", func() bool { _, _, err := b.Catalog.findContainer(ctr); return err != nil })
}

// A container that could not be made is not shown as one that ended with code 0 while its undo is stuck.
func TestContainerThatNeverWasIsNotListed(t *testing.T) {
	b := open(t)
	allowed := hinder(t, b)
	pod, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	allowed.Store(false)
	cfg := containerConfig("c")
	cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/x", HostPath: "no/absolute/path"}}
	if _, err := b.Create(t.Context(), pod, cfg); err == nil {
		t.Fatal("created")
	}
	r, err := b.Catalog.Get(pod)
	if err != nil || len(r.Containers) != 1 || r.Containers[0].Stuck == nil {
		t.Fatalf("no stuck container: %+v, %v", r, err)
	}
	if r.Containers[0].Listed() {
		t.Error("it is listed")
	}
	if _, c, err := b.Catalog.GetContainer(r.Containers[0].ID); !errdefs.IsNotFound(err) {
		t.Errorf("its status is given: %+v, %v", c, err)
	}
	if len(b.Problems()) != 1 {
		t.Errorf("problems: %v", b.Problems())
	}
}

// A container asked for as soon as the pod is adopted is not taken for one that an earlier daemon left in the making.
func TestRecoveryLeavesAContainerOfThisDaemonAlone(t *testing.T) {
	b := open(t)
	held := &held{driver: b.drv, at: make(chan struct{}), on: make(chan struct{})}
	b.cfg.Runtime = held
	b.reopen(t)
	pod, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	created := make(chan error, 1)
	go func() { _, err := b.Create(t.Context(), pod, containerConfig("c")); created <- err }()
	<-held.at
	p, _ := b.Catalog.find(pod)
	resumed := make(chan struct{})
	go func() { defer close(resumed); resume(t.Context(), p) }()
	select {
	case <-resumed:
	case <-time.After(100 * time.Millisecond):
	}
	close(held.on)
	if err := <-created; err != nil {
		t.Error(err)
	}
	<-resumed
}

// held is a driver whose create waits.
type held struct {
	*driver
	at, on chan struct{}
}

func (d *held) Create(ctx context.Context, pod string, c runtime.Create) (runtime.Process, error) {
	close(d.at)
	select {
	case <-d.on:
		return d.driver.Create(ctx, pod, c)
	case <-ctx.Done():
		return runtime.Process{}, context.Cause(ctx)
	}
}

// shy is a driver whose monitors are found only after some tries.
type shy struct {
	*driver
	allowed atomic.Bool
	asked   atomic.Int32
	during  func() // runs while a monitor answers
}

func (d *shy) Adopt(ctx context.Context, pod string) (runtime.Inventory, error) {
	d.asked.Add(1)
	if !d.allowed.Load() {
		return runtime.Inventory{}, errors.New("no answer")
	}
	inv, err := d.driver.Adopt(ctx, pod)
	if d.during != nil {
		d.during()
	}
	return inv, err
}

// A stopped pod gets no new monitor, and the search for its old one ends.
func TestAdoptionIsNotRetriedForAStoppedPod(t *testing.T) {
	b := open(t)
	pod, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	d := &shy{driver: b.drv}
	b.cfg.Runtime = d
	b.reopen(t)
	wait(t, "further tries", func() bool { return d.asked.Load() > 2 })
	if err := b.Stop(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	was := d.asked.Load()
	time.Sleep(50 * time.Millisecond)
	if now := d.asked.Load(); now > was {
		t.Errorf("%d more tries after the stop", now-was)
	}
}

// A container created while a late monitor is asked what it holds is not taken for one that has ended.
func TestLateAdoptionDoesNotEndANewContainer(t *testing.T) {
	b := open(t)
	pod, old := started(t, b)
	d := &shy{driver: b.drv}
	b.drv.inv.Containers = map[string]runtime.Found{string(old): {State: runtime.Running}}
	var id sandbox.ID
	d.during = func() {
		if id == "" {
			cfg := containerConfig("new")
			var err error
			if id, err = b.Create(context.Background(), pod, cfg); err != nil {
				t.Error(err)
			}
		}
	}
	b.cfg.Runtime = d
	b.reopen(t)
	d.allowed.Store(true)
	p, _ := b.Catalog.find(pod)
	wait(t, "the adoption", func() bool { return len(p.rec.Load().Containers) == 2 && p.lane.Busy() == "" })
	time.Sleep(20 * time.Millisecond)
	if c := p.rec.Load().Containers[1]; c.State != sandbox.Created {
		t.Errorf("the new container is %s (%s)", c.State, c.Reason)
	}
}

// A stop that comes before the pod is adopted waits for that: until then no exit would be heard of.
func TestStopWaitsForTheAdoption(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	b.end(t)
	pods, err := Open(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Pods = pods
	b.drv.mu.Lock()
	b.drv.pods = pods
	clear(b.drv.live) // it has ended while no daemon ran
	b.drv.mu.Unlock()
	stopped := make(chan error, 1)
	go func() { stopped <- b.Stop(t.Context(), pod) }()
	time.Sleep(20 * time.Millisecond)
	b.drv.inv.Containers = map[string]runtime.Found{string(ctr): {State: runtime.Exited, Exit: &runtime.Exit{Code: 3}}}
	b.Recover()
	select {
	case err := <-stopped:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(timeouts.For(20 * time.Second)):
		t.Error("the stop waits for an exit that nobody can see")
	}
	if _, c, err := b.Catalog.GetContainer(ctr); err != nil || c.ExitCode != 3 {
		t.Errorf("got %+v, %v", c, err)
	}
}

// A pod whose directory could not even be made leaves nothing that is tried for ever.
func TestPodThatCouldNotBeAnnouncedIsForgotten(t *testing.T) {
	b := open(t)
	away := b.cfg.PodsRoot() + ".away"
	if err := os.Rename(b.cfg.PodsRoot(), away); err != nil {
		t.Fatal(err)
	}
	_, err := b.Run(t.Context(), podConfig("a"), "")
	if err == nil {
		t.Fatal("a pod without a record")
	}
	if err := os.Rename(away, b.cfg.PodsRoot()); err != nil {
		t.Fatal(err)
	}
	wait(t, "the end of the undo", func() bool { return len(b.Catalog.index.Load().pods) == 0 })
}

// An exit is known although the record cannot be written, whatever keeps it from that, and is written when it can be.
func TestExitIsKnownAlthoughTheRecordCannotBeWritten(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	if err := os.Rename(b.cfg.Pod(pod), b.cfg.Pod(pod)+".away"); err != nil {
		t.Fatal(err)
	}
	b.drv.end(string(pod), string(ctr), runtime.Exit{Code: 3})
	wait(t, "the exit", func() bool {
		_, c, _ := b.Catalog.GetContainer(ctr)
		return c.State == sandbox.Exited &&
			c.ExitCode == 3
	})
	if err := os.Rename(b.cfg.Pod(pod)+".away", b.cfg.Pod(pod)); err != nil {
		t.Fatal(err)
	}
	wait(t, "the record", func() bool {
		r := &sandbox.Record{}
		_, err := sandbox.RecordKind.Read(b.cfg.Record(pod), r)
		return err == nil && r.Containers[0].State == sandbox.Exited
	})
}

// A record that a power cut tore is dropped by the first daemon of the next boot, with what is left of the pod. In the
// boot in which it was written it is damage, and owns its id.
func TestTornRecordIsDroppedByAnotherBoot(t *testing.T) {
	b := open(t)
	pod, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	b.end(t)
	if err := os.Truncate(b.cfg.Record(pod), 0); err != nil {
		t.Fatal(err)
	}
	b.reopen(t)
	if p := b.Problems(); len(p) != 1 || p[0].Pod != pod || !b.Catalog.owned(string(pod)) {
		t.Errorf("in the same boot: problems %+v", p)
	}
	b.unmount(t, pod)
	b.cfg.Boot = "boot-2"
	b.reopen(t)
	if p := b.Problems(); len(p) != 0 || b.Catalog.owned(string(pod)) {
		t.Errorf("in another boot: problems %+v", p)
	}
	if _, err := os.Stat(b.cfg.Pod(pod)); !os.IsNotExist(err) {
		t.Errorf("the pod's directory is left: %v", err)
	}
}

// A record that a power cut tore is what it was when it was last on the disk: a container that had ended before has
// ended still, and what the pod holds is given back.
func TestTornRecordGoesBackToTheOneBefore(t *testing.T) {
	b, f := open(t), &record.Flusher{}
	b.cfg.Dirty = f.DirtyRecord
	b.reopen(t)
	pod, ctr := started(t, b)
	b.drv.end(string(pod), string(ctr), runtime.Exit{Code: 7})
	wait(t, "the exit", func() bool {
		_, c, err := b.Catalog.GetContainer(ctr)
		return err == nil && c.State == sandbox.Exited
	})
	b.end(t)
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	path := b.cfg.Record(pod)
	// written anew
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("berth-record pod v1"), 0o600)); err != nil {
		t.Fatal(err)
	}
	b.reopen(t)
	if p := b.Problems(); len(p) != 1 {
		t.Errorf("in the boot in which it was written: problems %+v", p)
	}
	b.unmount(t, pod)
	_ = unix.Unmount(b.cfg.Rootfs(pod, ctr), unix.MNT_DETACH) // where it was not cleared away yet
	b.cfg.Boot = "boot-2"
	for range 2 { // and after a second power cut, before anything was made durable again
		b.end(t)
		if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("berth-record pod v1"), 0o600)); err != nil {
			t.Fatal(err)
		}
		b.reopen(t)
		_, c, err := b.Catalog.GetContainer(ctr)
		if p := b.Problems(); err != nil || len(p) != 0 || c.State != sandbox.Exited || c.ExitCode != 7 {
			t.Errorf("in another boot: problems %+v, container %+v, %v", p, c, err)
		}
	}
	if err := b.Remove(t.Context(), pod); err != nil {
		t.Error(err)
	}
	if _, attached := b.net.state(); attached > 0 {
		t.Error("the pod's network was not given back")
	}
	if _, err := os.Stat(b.cfg.Pod(pod)); !os.IsNotExist(err) {
		t.Errorf("the pod's directory is left: %v", err)
	}
}

// A pod stops although its record cannot be written. What its containers' exit files say is kept until it can, and then
// the record is written without anybody asking.
func TestPodStopsAlthoughTheRecordCannotBeWritten(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	run := b.cfg.RunContainer(pod, ctr)
	for _, file := range []string{b.cfg.RunExit(pod, ctr), filepath.Join(run, "config.json")} {
		if err := errors.Join(os.MkdirAll(run, 0o700), os.WriteFile(file, []byte(`{}`), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(b.cfg.Pod(pod), b.cfg.Pod(pod)+".away"); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(run); err != nil || len(left) != 1 || left[0].Name() != "exit" {
		t.Errorf("of the run directory is left %v, %v", left, err)
	}
	if err := os.Rename(b.cfg.Pod(pod)+".away", b.cfg.Pod(pod)); err != nil {
		t.Fatal(err)
	}
	wait(t, "the record", func() bool {
		r := &sandbox.Record{}
		_, err := sandbox.RecordKind.Read(b.cfg.Record(pod), r)
		return err == nil && r.State == sandbox.Stopped && r.Containers[0].ExitCode == 137
	})
	if err := b.Remove(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(b.cfg.Run(pod)); !os.IsNotExist(err) {
		t.Errorf("the run directory is left: %v", err)
	}
}

// A ready pod keeps its name through a restart although one that it replaced is stuck, whichever id comes first.
func TestRestartGivesTheNameToTheReadyPod(t *testing.T) {
	for range 4 { // the order of ids is random
		b := open(t)
		first, err := b.Run(t.Context(), podConfig("a"), "")
		if err != nil {
			t.Fatal(err)
		}
		b.net.failDel(errors.New("stuck"))
		if err := b.Stop(t.Context(), first); err == nil {
			t.Fatal("the stop is not stuck")
		}
		second, err := b.Run(t.Context(), podConfig("a"), "")
		if err != nil || second == first {
			t.Fatalf("got %s, %v", second, err)
		}
		b.reopen(t)
		if id, err := b.Run(t.Context(), podConfig("a"), ""); err != nil || id != second {
			t.Fatalf("the same request made pod %s beside %s: %v", id, second, err)
		}
		b.net.failDel(nil)
	}
}
