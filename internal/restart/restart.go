// Package restart does with containers of berth run that have ended what they were run with: it starts them again, as
// their restart policy says, or removes them. How it starts them, and how long it waits before, is as with a kubelet:
// attempt has the first, and a container that ends again and again is waited for longer each time, up to five minutes,
// until it has run for ten.
//
// Keeper is all of it. It keeps nothing in memory that it could not find again: how often a container has started by
// itself stands in the annotations of its record, so that a daemon that was restarted goes on where the last one ended.
package restart

import (
	"context"
	"log/slog"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/look"
	"berth/internal/op"
	"berth/internal/sandbox"
)

// Pods are the pods of the node.
type Pods interface {
	Run(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (sandbox.ID, error)
	Create(ctx context.Context, pod sandbox.ID, cfg *runtimeapi.ContainerConfig) (sandbox.ID, error)
	Start(ctx context.Context, container sandbox.ID) error
	Stop(ctx context.Context, id sandbox.ID) error
	Remove(ctx context.Context, id sandbox.ID) error
	RemoveContainer(ctx context.Context, id sandbox.ID) error
}

// Catalog finds pods.
type Catalog interface {
	List() []*sandbox.Record
	Get(id sandbox.ID) (*sandbox.Record, error)
}

// Watch tells of ends.
type Watch interface {
	// Next waits for the next end of a pod or container, and returns the record of its pod. After an error nothing comes
	// any more: ctx is done, or ends were missed.
	Next(ctx context.Context) (*sandbox.Record, error)
	Close()
}

// delays is how long a container that ends is waited for before it starts again, but for the first time, when it starts
// at once. One that has run for steadyAfter begins anew. These are a kubelet's (MaxContainerBackOff, and twice that).
var delays = op.Backoff{First: 10 * time.Second, Max: 5 * time.Minute}

// What could not be made or started is tried again after retryDelay.
const (
	steadyAfter = 10 * time.Minute
	retryDelay  = 10 * time.Second
)

// atOnce is how many pods are started at the same time, and how many are removed. After a restart of the machine all of
// them are due. One that has taken slotTime lets the next begin: one that hangs delays itself alone.
const (
	atOnce   = 4
	slotTime = 5 * time.Second
)

// Keeper starts containers again, or removes them. Its fields are set before Run.
type Keeper struct {
	Pods    Pods
	Catalog Catalog
	Watch   func() Watch
	// Adopted is closed when the records say what has become of each pod of an earlier daemon, or of an earlier boot of
	// the machine, of which not every change is an end.
	Adopted <-chan struct{}
	Log     *slog.Logger

	slots chan struct{} // of starts
	going chan struct{} // of removals, which may wait for the disk of the logs
	logs  *look.Disk    // of the pods
	ports ports
	work  sync.WaitGroup

	mu     sync.Mutex // guards tended
	tended map[name]chan struct{}
}

// name tells a pod, in all its sandboxes, from others.
type name struct{ namespace, name, uid string }

func nameOf(r *sandbox.Record) name {
	m := r.Config.Get().GetMetadata()
	return name{m.GetNamespace(), m.GetName(), m.GetUid()}
}

// Run keeps on until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	k.slots, k.going = make(chan struct{}, atOnce), make(chan struct{}, atOnce)
	k.logs, k.tended = look.NewDisk(), map[name]chan struct{}{}
	k.work.Go(func() {
		select {
		case <-k.Adopted:
			k.lookAtAll(ctx)
		case <-ctx.Done():
		}
	})
	for ctx.Err() == nil {
		k.follow(ctx)
	}
	k.work.Wait()
}

// follow looks at all pods, and then at those of which something ends, until some end was missed.
func (k *Keeper) follow(ctx context.Context) {
	w := k.Watch()
	defer w.Close()
	k.lookAtAll(ctx)
	for {
		r, err := w.Next(ctx)
		if err != nil {
			return
		}
		k.look(ctx, r)
	}
}

func (k *Keeper) lookAtAll(ctx context.Context) {
	for _, r := range k.Catalog.List() {
		k.look(ctx, r)
	}
}

// look has a pod tended that has containers which start again by themselves, or are removed at their end.
func (k *Keeper) look(ctx context.Context, r *sandbox.Record) {
	if !hasPolicy(r) {
		return
	}
	of := nameOf(r)
	k.mu.Lock()
	defer k.mu.Unlock()
	if woken := k.tended[of]; woken != nil {
		select {
		case woken <- struct{}{}:
		default: // it will look again anyway
		}
		return
	}
	woken := make(chan struct{}, 1)
	k.tended[of] = woken
	k.work.Go(func() { k.tend(ctx, of, woken) })
}

func hasPolicy(r *sandbox.Record) bool {
	for _, c := range r.Containers {
		if r.RestartPolicy(c).When != annotation.Never || r.Removal(c) != annotation.Stays {
			return true
		}
	}
	return false
}

// tend removes what is over of a pod, and starts what is due, until nothing is.
func (k *Keeper) tend(ctx context.Context, of name, woken chan struct{}) {
	said := ""
	failed := func(err error, text string) {
		if err.Error() != said && ctx.Err() == nil {
			said = err.Error()
			k.Log.Warn(text, "pod", of.name, "every", retryDelay, "error", err)
		}
		pause(ctx, retryDelay, nil)
	}
	for ctx.Err() == nil {
		p := find(k.Catalog.List(), of)
		over, _, later := p.over()
		if over != nil {
			if pause(ctx, removeDelay, nil); ctx.Err() != nil {
				return
			}
			if err := k.remove(ctx, of); err != nil {
				failed(err, "what has ended of a pod of berth run could not be removed; it is tried again until it can")
			}
			continue
		}
		at, wanted := p.due()
		if !later.IsZero() && (at.IsZero() || later.Before(at)) {
			at, wanted = later, nil
		}
		switch wait := time.Until(at); {
		case at.IsZero():
			if k.leave(of, woken) {
				return
			}
		case wait > 0:
			pause(ctx, wait, woken)
		case wanted == nil: // it is over now
		default:
			err := k.start(ctx, p, wanted)
			if err == nil {
				said = ""
				continue
			}
			failed(err, "what has ended of a pod of berth run could not all be started again; it is tried again until it "+
				"can, or until the pod is stopped")
		}
	}
}

// leave reports whether nothing has happened that is still to be looked at; then the pod is not tended any more.
func (k *Keeper) leave(of name, woken chan struct{}) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-woken:
		return false
	default:
		delete(k.tended, of)
		return true
	}
}

func pause(ctx context.Context, d time.Duration, woken <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-woken:
	case <-ctx.Done():
	}
}

// delay is how long a container that has ended is waited for, which has started by itself so often in a row.
func delay(restarts int) time.Duration {
	if restarts <= 0 {
		return 0
	}
	return delays.After(restarts)
}
