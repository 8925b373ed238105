package main

import (
	"context"
	"fmt"
	"log/slog"
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

// features finds out what the runtimes of these handlers can do. With mu held, by alone.
func (t *runtimeTrials) features(ctx context.Context, of *handlers) *foundFeatures {
	found := &foundFeatures{about: of, tried: of.found, mapped: tryMapped(t.monitor, t.images, t.root)}
	if !of.probed {
		_, tried, err := t.choose(ctx, of.found)
		if found.tried = tried; err != nil && ctx.Err() == nil {
			t.log.Warn("the trial of the runtimes failed, or its result could not be kept", "error", err)
		}
	}
	try := func(ctx context.Context, r host.Runtime) error {
		return host.TryUserns(ctx, r, t.state, t.facts.CgroupDriver, t.monitor, t.run)
	}
	var err error
	runtimes := slices.DeleteFunc(slices.Clone(of.found), func(r host.Runtime) bool {
		return of.spec(r.Name).Infra // its runtime makes the namespaces of a pod itself
	})
	found.userns, err = host.UsernsRuntimes(ctx, filepath.Join(t.root, "runtime-features"), t.facts, runtimes, try)
	if err != nil && ctx.Err() == nil {
		t.log.Warn("which runtimes can do user namespaces is tried again by the next start", "error", err)
	}
	for name, err := range found.userns {
		if err != nil {
			found.userns[name] = fmt.Errorf("the runtime cannot join one: %w", err)
		}
	}
	for _, r := range of.found {
		if of.spec(r.Name).Infra {
			found.userns[r.Name] = errInfra
		}
	}
	return found
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
