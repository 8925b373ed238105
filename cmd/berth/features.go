package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/host"
	"berth/internal/rootfs"
)

// features is what the node can do that not every kernel, file system and runtime can. It is found out behind the first
// question, and not before: it takes containers that are made for it. Until then nothing is promised. The first Status
// waits a moment for it.
type features struct {
	settings   *settings
	trials     *runtimeTrials
	background *background
	// features of trials, but for tests
	look func(ctx context.Context, of *handlers, tell func(foundFeatures)) *foundFeatures

	asked atomic.Pointer[handlers] // about which handlers
	again atomic.Bool              // what failed is being tried again
	found atomic.Pointer[foundFeatures]

	limit    time.Duration // of the wait of who asks first, and of all who come meanwhile
	waiting  sync.Once
	waited   chan struct{} // closed by stopWait, when something was found or nobody waits any more
	stopWait func()
}

// firstWait is some times what the trials of two runtimes take. It is a fraction of the time after which a kubelet asks
// for the next time.
const firstWait = 2 * time.Second

func (f *features) prepare(s *settings, t *runtimeTrials, b *background) {
	f.settings, f.trials, f.background, f.look = s, t, b, t.features
	f.limit, f.waited = firstWait, make(chan struct{})
	f.stopWait = sync.OnceFunc(func() { close(f.waited) })
}

// foundFeatures is what was found out at one time. What cannot be may be so for a reason that passes, as a node without
// memory or room, so it is found out again when it is asked for later, after growing pauses.
type foundFeatures struct {
	about  *handlers
	tried  []host.Runtime   // which runtimes make containers
	mapped error            // why no root can have its ids mapped; nil if one can
	userns map[string]error // why the runtime of this name can make no container in a user namespace; nil if it can

	whole bool // all was found out that can be
	at    time.Time
	pause time.Duration // from at until it is worth another try
}

// The pauses between tries of what failed.
const firstRetry, lastRetry = 30 * time.Second, time.Hour

// failed says that something was found not to work which may work another time.
func (f *foundFeatures) failed() bool {
	for _, err := range f.userns {
		if err != nil && !errors.Is(err, errInfra) {
			return true
		}
	}
	return f.mapped != nil
}

// due says that what failed is worth another try.
func (f *foundFeatures) due(of *handlers, now time.Time) bool {
	return f != nil && f.whole && f.about == of && f.failed() && now.Sub(f.at) >= f.pause
}

// since keeps of what was found before about the same handlers what worked then: a try that fails now has a reason
// that passes.
func (f *foundFeatures) since(before *foundFeatures) {
	f.at, f.pause = time.Now(), firstRetry
	if before == nil || before.about != f.about {
		return
	}
	f.pause = min(2*before.pause, lastRetry)
	f.tried = slices.Clone(f.tried) // the handlers' own, unless it was tried
	for i, r := range f.tried {
		f.tried[i].Works = r.Works || before.works(r.Name)
	}
	if before.mapped == nil {
		f.mapped = nil
	}
	for name, err := range before.userns {
		if err == nil {
			f.userns[name] = nil
		}
	}
}

var (
	errInfra   = errors.New("a handler that starts an infra container has no user namespaces")
	errUntried = errors.New("it is not found out yet")
)

// why says why a handler cannot have pods with user namespaces; nil if it can.
func (f *foundFeatures) why(handler string) error {
	if f.mapped != nil {
		return f.mapped
	}
	err, tried := f.userns[handler]
	if !tried {
		return errUntried
	}
	return err
}

// works says that a container of this runtime came of a trial.
func (f *foundFeatures) works(handler string) bool {
	return f != nil && slices.ContainsFunc(f.tried, func(r host.Runtime) bool { return r.Name == handler && r.Works })
}

// get returns what was found last, nil while it is looked for the first time. Where the configuration was loaded anew,
// it is looked for anew, and after a while where something did not work. It never waits for that.
func (f *features) get() *foundFeatures {
	found, h := f.found.Load(), f.settings.handlers.Load()
	switch {
	case f.asked.Swap(h) != h:
		f.background.run(func(ctx context.Context) { f.search(ctx, h) })
	case found.due(h, time.Now()) && f.again.CompareAndSwap(false, true):
		f.background.run(func(ctx context.Context) {
			defer f.again.Store(false)
			f.search(ctx, h)
		})
	}
	return found
}

// search looks for what handlers can do, unless there are others by now.
func (f *features) search(ctx context.Context, h *handlers) {
	f.trials.alone(func() {
		if f.asked.Load() != h {
			return
		}
		before := f.found.Load()
		tell := func(found foundFeatures) {
			if ctx.Err() == nil {
				found.since(before)
				f.found.Store(&found)
			}
		}
		found := *f.look(ctx, h, tell)
		found.whole = true
		if tell(found); ctx.Err() == nil {
			f.stopWait()
		}
	})
}

// first is get that waits where not all was found yet: a kubelet that hears once that a handler has no user namespaces
// refuses such pods until it asks again. A runtime or a disk that hangs makes nobody wait for longer than limit.
func (f *features) first() *foundFeatures {
	if found := f.get(); found != nil && found.whole {
		return found
	}
	f.waiting.Do(func() { time.AfterFunc(f.limit, f.stopWait) })
	<-f.waited
	return f.found.Load()
}

// usernsError says why a pod of this handler cannot have a user namespace. While that is not known, it may be tried.
func (f *features) usernsError(handler string) error {
	now := f.settings.handlers.Load()
	if handler == "" {
		handler = now.fallback
	}
	var err error
	if found := f.get(); now.spec(handler).Infra {
		err = errInfra
	} else if found != nil && found.about == now {
		err = found.why(handler)
	}
	if err != nil && !errors.Is(err, errUntried) {
		return fail.New(errdefs.ErrFailedPrecondition,
			"user namespaces are not available on this node with the runtime handler %s: %w", handler, err)
	}
	return nil
}

// handlers is what Status tells of the runtime handlers, the default's first. A runtime that is not configured and that
// was only found in its usual place is one if it works.
func (f *features) handlers() []*runtimeapi.RuntimeHandler {
	found, recursive, now := f.first(), rootfs.TryRecursive() == nil, f.settings.handlers.Load()
	list := []*runtimeapi.RuntimeHandler{{Name: "", Features: found.of(now.fallback, recursive)}}
	for _, r := range now.found {
		if _, named := now.named[r.Name]; !named && r.Name != now.fallback && !r.Works && !found.works(r.Name) {
			continue
		}
		list = append(list, &runtimeapi.RuntimeHandler{Name: r.Name, Features: found.of(r.Name, recursive)})
	}
	return list
}

func (f *foundFeatures) of(handler string, recursive bool) *runtimeapi.RuntimeHandlerFeatures {
	return &runtimeapi.RuntimeHandlerFeatures{
		RecursiveReadOnlyMounts: recursive, UserNamespaces: f != nil && f.why(handler) == nil,
	}
}

// info is what a verbose Status tells: of each runtime "yes", or why not.
func (f *foundFeatures) info() map[string]string {
	out := map[string]string{}
	if f == nil {
		return out
	}
	for name := range f.userns {
		out[name] = "yes"
		if err := f.why(name); err != nil {
			out[name] = err.Error()
		}
	}
	return out
}
