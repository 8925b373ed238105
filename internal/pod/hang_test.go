package pod

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"berth/internal/fail"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// frozen is a disk of records that answers nothing while it is frozen.
type frozen struct {
	mu      sync.Mutex
	thaw    chan struct{} // nil while it answers
	waiting int
}

func (f *frozen) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.thaw = make(chan struct{})
}

func (f *frozen) melt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.thaw != nil {
		close(f.thaw)
		f.thaw = nil
	}
}

func (f *frozen) write(path string, r *sandbox.Record, most int) error {
	f.mu.Lock()
	thaw := f.thaw
	if thaw != nil {
		f.waiting++
	}
	f.mu.Unlock()
	if thaw != nil {
		<-thaw
	}
	return sandbox.RecordKind.WriteWithin(path, r, most)
}

func (f *frozen) held() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waiting
}

// freezable puts the records of b's pods on a disk that can be frozen.
func freezable(t *testing.T, b *bench) *frozen {
	t.Helper()
	f := &frozen{}
	for _, p := range b.Catalog.index.Load().pods {
		wait(t, "the last write", func() bool { return !writes(&p.ledger) })
		p.put = f.write
	}
	t.Cleanup(f.melt)
	return f
}

// writes says whether the pod's record is being written or is to be.
func writes(l *ledger) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.draining || l.unwritten || len(l.turn) > 0
}

// While the disk of the records hangs a container can be stopped and its end is seen at once; all is written when it
// answers.
func TestStopOnADiskThatHangs(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	disk := freezable(t, b)
	disk.freeze()
	b.drv.deaf = true
	if err := b.StopContainer(t.Context(), ctr, 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	_, c, err := b.Catalog.GetContainer(ctr)
	if err != nil || c.State != sandbox.Exited || c.ExitCode != 137 {
		t.Fatalf("after the stop: %+v, %v", c, err)
	}
	wait(t, "a write that hangs", func() bool { return disk.held() > 0 })
	b.Exited(string(pod), string(ctr), runtime.Exit{}) // the reader of a monitor's connection does not wait
	if err := b.Stop(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if r, err := b.Catalog.Get(pod); err != nil || r.State != sandbox.Stopped {
		t.Fatalf("after the stop of the pod: %v, %v", r, err)
	}
	if len(b.Problems()) == 0 {
		t.Error("nobody is told that the disk hangs")
	}
	disk.melt()
	p := b.Catalog.index.Load().pods[pod]
	wait(t, "the writes", func() bool { return !writes(&p.ledger) })
	r := &sandbox.Record{}
	if _, err := sandbox.RecordKind.Read(p.path, r); err != nil || r.State != sandbox.Stopped ||
		r.Containers[0].ExitCode != 137 {
		t.Errorf("on the disk: %+v, %v", r, err)
	}
}

// What must be durable first ends with its context and leaves nothing, also when the disk takes it later.
func TestCreateOnADiskThatHangs(t *testing.T) {
	b := open(t)
	pod, _ := started(t, b)
	disk := freezable(t, b)
	disk.freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	cfg := containerConfig("d")
	_, err := b.Create(ctx, pod, cfg)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the disk of the records") {
		t.Fatalf("create: %v", err)
	}
	if kind := fail.KindOf(err); kind.Code != codes.DeadlineExceeded {
		t.Errorf("a caller whose deadline passed is told %s: %v", kind.Name, err)
	}
	p := b.Catalog.index.Load().pods[pod]
	p.containers.mu.Lock()
	n := len(p.containers.of)
	p.containers.mu.Unlock()
	if n != 1 {
		t.Errorf("%d containers are known", n)
	}
	disk.melt()
	wait(t, "the writes", func() bool { return !writes(&p.ledger) })
	r := &sandbox.Record{}
	if _, err := sandbox.RecordKind.Read(p.path, r); err != nil || len(r.Containers) != 1 {
		t.Errorf("on the disk: %+v, %v", r, err)
	}
	if _, err := b.Create(t.Context(), pod, cfg); err != nil {
		t.Errorf("asked again: %v", err)
	}
}

func (d *driver) AwaitExit(ctx context.Context, _, ctr string) error {
	for ; ; time.Sleep(time.Millisecond) {
		d.mu.Lock()
		_, alive := d.live[ctr]
		d.mu.Unlock()
		if !alive || ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// TestNetworkHasItsOwnDeadline has plugins take longer than their settings let them, which the network knows.
func TestNetworkHasItsOwnDeadline(t *testing.T) {
	b := open(t)
	b.net.hold, b.net.deadline = make(chan struct{}), 50*time.Millisecond
	_, err := b.Run(t.Context(), podConfig("a"), "")
	if err == nil || !strings.Contains(err.Error(), "step network") ||
		!strings.Contains(err.Error(), "not done after 50ms") {
		t.Errorf("%v", err)
	}
}
