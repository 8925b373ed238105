package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"

	"berth/internal/host"
	"berth/internal/rootfs"
	"berth/internal/userns"
)

// runtimeTrials finds out by throwaway containers what the runtimes of this node can do.
type runtimeTrials struct {
	mu sync.Mutex // held during a trial: all containers of a runtime's trials have one name

	root, state, images string // directories: the daemon's two, and that of the images
	monitor             string // the program berth-monitor
	facts               host.Facts
	log                 *slog.Logger
	// run runs a program, and leaves nothing of it behind.
	run func(ctx context.Context, name string, cmd *exec.Cmd) error
}

// alone calls fn while no other caller tries a runtime.
func (t *runtimeTrials) alone(fn func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fn()
}

// choose finds out which runtimes make containers, and names the first. With mu held, by alone.
func (t *runtimeTrials) choose(ctx context.Context, found []host.Runtime) (string, []host.Runtime, error) {
	try := func(ctx context.Context, r host.Runtime) host.Runtime {
		return host.TryRuntime(ctx, r, t.state, t.facts.CgroupDriver, t.run)
	}
	name, all, err := host.ChooseRuntime(ctx, filepath.Join(t.root, "runtimes"), t.facts, found, try)
	for _, r := range all {
		for _, a := range r.Holes() {
			t.log.Warn("containers may get out of a runtime: install a version that has the hole closed",
				"runtime", r.Name, "path", r.Path, "version", r.Version, "advisory", a.ID, "source", a.Source)
		}
	}
	return name, all, err
}

// features finds out what the runtimes of these handlers can do. It tells what it has found as it goes on, that of the
// default's runtime first: to try one that hangs takes long. With mu held, by alone.
func (t *runtimeTrials) features(ctx context.Context, of *handlers, tell func(foundFeatures)) *foundFeatures {
	found := &foundFeatures{
		about: of, tried: of.found, mapped: tryMapped(t.monitor, t.images, t.root), userns: map[string]error{},
	}
	t.findUserns(ctx, found, tell)
	if !of.probed {
		_, tried, err := t.choose(ctx, of.found)
		if found.tried = tried; err != nil && ctx.Err() == nil {
			t.log.Warn("the trial of the runtimes failed, or its result could not be kept", "error", err)
		}
	}
	return found
}

func (t *runtimeTrials) findUserns(ctx context.Context, found *foundFeatures, tell func(foundFeatures)) {
	of := found.about
	try := func(ctx context.Context, r host.Runtime) error {
		return host.TryUserns(ctx, r, t.state, t.facts.CgroupDriver, t.monitor, t.run)
	}
	var runtimes []host.Runtime
	for _, r := range of.found {
		switch {
		case of.spec(r.Name).Infra: // its runtime makes the namespaces of a pod itself
			found.userns[r.Name] = errInfra
		case r.Name == of.fallback:
			runtimes = slices.Insert(runtimes, 0, r)
		default:
			runtimes = append(runtimes, r)
		}
	}
	knows := func(name string, why error) {
		if why != nil {
			why = fmt.Errorf("the runtime cannot join one: %w", why)
		}
		found.userns[name] = why
		partial := *found
		partial.userns = maps.Clone(found.userns)
		tell(partial)
	}
	cache := filepath.Join(t.root, "runtime-features")
	if _, err := host.UsernsRuntimes(ctx, cache, t.facts, runtimes, try, knows); err != nil && ctx.Err() == nil {
		t.log.Warn("which runtimes can do user namespaces is tried again by the next start", "error", err)
	}
}

// tryMapped says why no root can have its ids mapped; nil if one can.
func tryMapped(holder, layers, writable string) error {
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // the holder dies with its thread
		defer goruntime.UnlockOSThread()
		const first = 1 << 30 // ids that are not in use
		ids := []userns.Range{{Host: first, Size: 65536}}
		h, err := userns.Hold(holder, 0, userns.Mapping{UIDs: ids, GIDs: ids})
		if err == nil {
			err = rootfs.TryMapped(layers, writable, rootfs.IDMap{UserNS: h.Path("user"), UID: first, GID: first})
			h.End()
		}
		done <- err
	}()
	return <-done
}
