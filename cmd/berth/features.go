package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync/atomic"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host"
	"berth/internal/pod"
	"berth/internal/rootfs"
	"berth/internal/userns"
)

// features is what the node can do that not every kernel, file system and runtime can. It is found out behind the first
// question, and not before: it takes containers that are made for it. Until then nothing is promised.
type features struct {
	of    *node
	asked atomic.Pointer[handlers] // about which handlers
	found atomic.Pointer[foundFeatures]
}

type foundFeatures struct {
	mapped error            // why no root can have its ids mapped; nil if one can
	userns map[string]error // why the runtime of this name can make no container in a user namespace; nil if it can
}

// why says why a handler cannot have pods with user namespaces; nil if it can.
func (f *foundFeatures) why(handler string) error {
	if f.mapped != nil {
		return f.mapped
	}
	err, tried := f.userns[handler]
	if !tried {
		return errors.New("a handler that starts an infra container has no user namespaces")
	}
	if err != nil {
		return fmt.Errorf("the runtime cannot join one: %w", err)
	}
	return nil
}

// get returns what was found, nil while it is being looked for. Where the configuration was loaded anew, it is looked for anew.
func (f *features) get() *foundFeatures {
	n := f.of
	if h := n.handlers.Load(); f.asked.Swap(h) != h {
		n.background.Go(func() {
			if found := f.find(n.life, h); n.life.Err() == nil {
				f.found.Store(found)
			}
		})
	}
	return f.found.Load()
}

func (f *features) find(ctx context.Context, of *handlers) *foundFeatures {
	n := f.of
	found := &foundFeatures{mapped: tryMapped(n.monitor, n.cfg.ImagesRoot(), n.cfg.Root)}
	try := func(ctx context.Context, r host.Runtime) error {
		return host.TryUserns(ctx, r, n.cfg.State, n.facts.CgroupDriver, n.monitor, n.helpers.Run)
	}
	var err error
	runtimes := slices.DeleteFunc(slices.Clone(of.found), func(r host.Runtime) bool {
		return of.spec(r.Name).Infra // its runtime makes the namespaces of a pod itself
	})
	found.userns, err = host.UsernsRuntimes(ctx, filepath.Join(n.cfg.Root, "runtime-features"), n.facts, runtimes, try)
	if err != nil && ctx.Err() == nil {
		n.log.Warn("the next start tries the runtimes again", "error", err)
	}
	return found
}

// tryMapped says why no root can have its ids mapped; nil if one can.
func tryMapped(holder, layers, writable string) error {
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // the holder dies with its thread
		defer goruntime.UnlockOSThread()
		const first = 1 << 30 // ids that nobody has
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

// usernsError says why a pod of this handler cannot have a user namespace. While that is not known, it may be tried.
func (f *features) usernsError(handler string) error {
	if handler == "" {
		handler = f.of.handlers.Load().fallback
	}
	found := f.get()
	if found == nil {
		return nil
	}
	if err := found.why(handler); err != nil {
		return pod.Fail(errdefs.ErrFailedPrecondition, "user namespaces are not available on this node with the runtime handler %s: %w", handler, err)
	}
	return nil
}

// handlers is what Status tells of the runtime handlers, the default's first.
func (f *features) handlers() []*runtimeapi.RuntimeHandler {
	found, recursive, now := f.get(), rootfs.TryRecursive() == nil, f.of.handlers.Load()
	list := []*runtimeapi.RuntimeHandler{{Name: "", Features: found.of(now.fallback, recursive)}}
	for _, r := range now.found {
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
