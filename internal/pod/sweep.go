package pod

import (
	"context"
	"log/slog"
	"maps"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	"berth/internal/network"
	"berth/internal/op"
	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// sweeper removes what carries the names of this instance's pods and no record owns: the remains of a record that was
// lost.
type sweeper struct {
	layout  *sandbox.Layout
	owned   func(id string) bool // whether a record, also one that cannot be read, has the id
	handler func(name string) (runtime.Handler, error)
	worker  *worker  // detaches
	orphans *orphans // is told who could not be detached
	runtime interface {
		Sweep(ctx context.Context, live func(pod string) bool, handler func(name string) (runtime.Handler, error)) error
	}
	network interface {
		Attachments() ([]string, error)
		Detach(ctx context.Context, p network.Pod) error
	}
	cgroups interface {
		Pods(ctx context.Context) (ids []string, err error)
		RemovePod(ctx context.Context, pod string) error
	}
	log *slog.Logger
}

func newSweeper(s *Pods) *sweeper {
	return &sweeper{
		layout: &s.cfg.Layout, owned: s.Catalog.owned, handler: s.bundle.Handlers.Find, worker: &s.worker,
		orphans: &s.orphans,
		runtime: s.runtime, network: s.cfg.Network, cgroups: s.cfg.Cgroups, log: s.cfg.Log,
	}
}

// sweep removes what it finds of each kind; one that fails keeps no other from it, and is logged before the next one
// begins. What lives is ended first, so that nothing uses what is removed then. Pods are detached in the background.
func (s *sweeper) sweep(ctx context.Context) {
	for _, kind := range []struct {
		what string
		do   func() error
	}{
		{"monitors and runtime state", func() error { return s.runtime.Sweep(ctx, s.owned, s.handler) }},
		{"networks", s.sweepNetworks},
		{"run directories", func() error { return rootfs.Sweep(s.layout.PodsState(), s.owned) }},
		{"cgroups", func() error { return s.sweepCgroups(ctx) }},
	} {
		if err := kind.do(); err != nil && ctx.Err() == nil {
			s.log.Warn("sweep of what no record owns is not complete; the next start tries again", "what", kind.what,
				"error", err)
		}
	}
}

// sweepNetworks begins to detach the pods that are attached, and removes the network namespaces of those that are not.
// All namespaces stay where it cannot be told who is attached.
func (s *sweeper) sweepNetworks() error {
	ids, err := s.network.Attachments()
	if err != nil {
		return err
	}
	attached := map[string]bool{}
	slots := make(chan struct{}, 2*goruntime.GOMAXPROCS(0))
	for _, id := range ids {
		if attached[id] = true; !s.owned(id) {
			s.worker.background(func(ctx context.Context) { s.detach(ctx, slots, id) })
		}
	}
	return network.SweepPins(s.layout.NetNS, s.layout.NetNSPrefix(), func(id string) bool {
		return attached[id] || s.owned(id)
	})
}

// detach detaches a pod, and tries it again until it succeeds: after a boot the agents of the network's plugins may
// start later than the daemon. The namespace stays until then, because plugins find in it what they undo. The pod has
// no record that says what is wrong, so the orphans tell of it meanwhile.
func (s *sweeper) detach(ctx context.Context, slots chan struct{}, id string) {
	pod := network.Pod{ID: id, NetNS: s.layout.NetNSPin(sandbox.ID(id))}
	try := func() error {
		err := op.InTurn(ctx, slots, slotTime, func(ctx context.Context) error {
			if err := s.network.Detach(ctx, pod); err != nil {
				return err
			}
			return network.Unpin(network.Namespaces{Net: pod.NetNS})
		})
		s.orphans.note(sandbox.ID(id), err)
		return err
	}
	if err := try(); err != nil && ctx.Err() == nil {
		s.log.Warn("a pod without a record could not be detached; it is tried again in the background", "pod", id,
			"error", err)
		s.worker.retry(try)
	}
}

// sweepCgroups removes the default cgroups of pods that are no more.
func (s *sweeper) sweepCgroups(ctx context.Context) error {
	groups, err := s.cgroups.Pods(ctx)
	for _, id := range groups {
		if sandbox.ID(id).Valid() && !s.owned(id) {
			if e := s.cgroups.RemovePod(ctx, id); e != nil {
				err = e
			}
		}
	}
	return err
}

// orphans are the attached pods without a record whose detaching has failed, and is tried again.
type orphans struct {
	mu     sync.Mutex // guards failed; nothing else is locked below it
	failed map[sandbox.ID]sandbox.Problem
}

// note says how a try to detach a pod has ended.
func (o *orphans) note(id sandbox.ID, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, again := o.failed[id]
	if err == nil {
		delete(o.failed, id)
		return
	}
	now := sandbox.Problem{Pod: id, What: "the pod has no record any more, and is attached to the network still: " +
		err.Error(), Since: time.Now()}
	if again {
		now.Since = before.Since
	}
	if o.failed == nil {
		o.failed = map[sandbox.ID]sandbox.Problem{}
	}
	o.failed[id] = now
}

// problems are those that are not detached yet.
func (o *orphans) problems() []sandbox.Problem {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.failed))
}
