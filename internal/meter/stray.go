package meter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"berth/internal/rootfs"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// How often the layers of containers that may leave their projects are walked, how many entries a second, and for how
// long at most. It looks at each file by some system calls more than a walk that only counts.
const (
	strayEvery = 10 * time.Minute
	strayRate  = 2000
	strayLimit = 10 * time.Minute
)

// StrayWatch knows which containers have files that their project does not count.
type StrayWatch struct {
	cfg Config

	mu    sync.Mutex // guards found; nothing is locked below it
	found map[sandbox.ID]stray
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

// set notes what was found of a container, and says whether it is the first time.
func (w *StrayWatch) set(ctr sandbox.ID, s stray) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, known := w.found[ctr]
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

// Look walks the layers of containers that may leave their projects, one after another.
func (w *StrayWatch) Look(ctx context.Context) {
	there := map[sandbox.ID]bool{}
	for r := range w.cfg.Records {
		for _, c := range r.Containers {
			if !c.Live() || !mayLeave(r, c) {
				continue
			}
			there[c.ID] = true
			if !w.lookAt(ctx, r.ID, c.ID) {
				return
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.found, func(id sandbox.ID, _ stray) bool { return !there[id] })
}

// lookAt walks the layer of one container. It is false when the daemon ends meanwhile.
func (w *StrayWatch) lookAt(ctx context.Context, pod, ctr sandbox.ID) bool {
	within, cancel := context.WithTimeout(ctx, strayLimit)
	defer cancel()
	bytes, inodes, err := rootfs.Strays(within, w.cfg.Layout.Writable(pod, ctr), strayRate)
	if ctx.Err() != nil {
		return false
	}
	if err != nil && !errors.Is(err, rootfs.ErrIncomplete) {
		return true // it is removed, or too large: what was known of it stays
	}
	if w.set(ctr, stray{pod, bytes, inodes, time.Now()}) {
		w.cfg.Log.Warn("files of a container are outside its project: its storage limit does not hold for them",
			"pod", pod, "container", ctr, "files", inodes, "bytes", bytes)
	}
	return true
}
