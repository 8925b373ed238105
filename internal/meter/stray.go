package meter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/rootfs"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// How often the layers of containers that may leave their projects are walked, how many entries a second, and for how
// long at first: of a layer whose walk was cut off the next one may take twice as long, and goes on beside those of the
// others. It looks at each file by some system calls more than a walk that only counts.
const (
	strayEvery = 10 * time.Minute
	strayRate  = 2000
	strayFirst = 10 * time.Minute
	strayMost  = 24 * time.Hour
)

// StrayWatch knows which containers have files that their project does not count.
type StrayWatch struct {
	cfg  Config
	long atomic.Bool // layers are walked whose walk was cut off before

	mu     sync.Mutex // guards what follows; nothing is locked below it
	found  map[sandbox.ID]stray
	within map[sandbox.ID]time.Duration // what the next walk of a layer may take, if more than strayFirst
}

// stray is what of a container's layer its project did not count when it was last walked.
type stray struct {
	pod           sandbox.ID
	bytes, inodes uint64
	since         time.Time
}

// of tells what is known of one container; nothing is no stray.
func (w *StrayWatch) of(ctr sandbox.ID) stray {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.found[ctr]
}

// set notes what was found of a container, in a part of its layer or in all of it, and says whether it is the first
// time.
func (w *StrayWatch) set(ctr sandbox.ID, s stray, part bool) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, known := w.found[ctr]
	if part {
		s.bytes, s.inodes = max(s.bytes, was.bytes), max(s.inodes, was.inodes)
	}
	if s.inodes == 0 {
		delete(w.found, ctr)
		return false
	}
	if known {
		s.since = was.since
	}
	if w.found == nil {
		w.found = map[sandbox.ID]stray{}
	}
	w.found[ctr] = s
	return !known
}

// problems are what a person should look at.
func (w *StrayWatch) problems() (all []sandbox.Problem) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ctr, s := range w.found {
		what := fmt.Sprintf("container %s has left its project with %d files of %d bytes: its limit of what it writes does "+
			"not hold for them; give the pod a user namespace, or the seccomp profile RuntimeDefault", ctr, s.inodes, s.bytes)
		all = append(all, sandbox.Problem{Pod: s.pod, What: what, Since: s.since})
	}
	return all
}

// mayLeave reports whether a container can change the project of its files: the kernel keeps those of a user namespace
// from it, and the default seccomp filter all that have it.
func mayLeave(r *sandbox.Record, c *sandbox.Container) bool {
	return sandbox.UserNamespace(r.Config.Get()) == nil &&
		!spec.KeepsProject(c.Config.Get().GetLinux().GetSecurityContext())
}

// Watch looks for files that have left their containers' projects until ctx ends.
func (w *StrayWatch) Watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(strayEvery):
			w.Look(ctx)
		}
	}
}

// place is where a container is.
type place struct{ pod, container sandbox.ID }

// Look walks the layers of containers that may leave their projects, one after another, and begins to walk those that
// take long in the background.
func (w *StrayWatch) Look(ctx context.Context) {
	var all, long []place
	there := map[sandbox.ID]bool{}
	for r := range w.cfg.Records {
		for _, c := range r.Containers {
			if !c.Live() || !mayLeave(r, c) {
				continue
			}
			there[c.ID] = true
			if p := (place{r.ID, c.ID}); w.limit(c.ID) > strayFirst {
				long = append(long, p)
			} else {
				all = append(all, p)
			}
		}
	}
	w.beginLong(long)
	for _, p := range all {
		if !w.lookAt(ctx, p.pod, p.container) {
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.found, func(id sandbox.ID, _ stray) bool { return !there[id] })
	maps.DeleteFunc(w.within, func(id sandbox.ID, _ time.Duration) bool { return !there[id] })
}

// beginLong walks layers that take long in the background, the shorter first, unless some are being walked.
func (w *StrayWatch) beginLong(long []place) {
	if len(long) == 0 || !w.long.CompareAndSwap(false, true) {
		return
	}
	slices.SortStableFunc(long, func(a, b place) int { return cmp.Compare(w.limit(a.container), w.limit(b.container)) })
	w.cfg.Background(func(ctx context.Context) {
		defer w.long.Store(false)
		for _, p := range long {
			if !w.lookAt(ctx, p.pod, p.container) {
				return
			}
		}
	})
}

// limit is how long the walk of a container's layer may take.
func (w *StrayWatch) limit(ctr sandbox.ID) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.within[ctr], strayFirst)
}

// cutOff notes that a walk took too long.
func (w *StrayWatch) cutOff(ctr sandbox.ID, after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.within == nil {
		w.within = map[sandbox.ID]time.Duration{}
	}
	w.within[ctr] = min(2*after, strayMost)
}

// lookAt walks the layer of one container. It is false when the daemon ends meanwhile.
func (w *StrayWatch) lookAt(ctx context.Context, pod, ctr sandbox.ID) bool {
	limit := w.limit(ctr)
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	bytes, inodes, err := rootfs.Strays(within, w.cfg.Layout.Writable(pod, ctr), strayRate)
	if ctx.Err() != nil {
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) {
		w.cutOff(ctr, limit)
	}
	part := errors.Is(err, rootfs.ErrIncomplete)
	if err != nil && !part {
		return true // it is removed: what was known of it stays
	}
	if w.set(ctr, stray{pod, bytes, inodes, time.Now()}, part) {
		w.cfg.Log.Warn("files of a container are outside its project: its storage limit does not hold for them",
			"pod", pod, "container", ctr, "files", inodes, "bytes", bytes)
	}
	return true
}
