package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"berth/internal/cgroup"
)

// idLength is how long the ids of pods and containers are. What is called otherwise is not ours.
const idLength = 64

// orphanTime bounds each step of the removal of one pod or container that no record owns. What takes longer hangs in
// the kernel, or its runtime does, and the next sweep tries it again.
const orphanTime = 30 * time.Second

// inOrphanTime calls fn with a context that ends after orphanTime.
func inOrphanTime(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, orphanTime,
		fmt.Errorf("not done after %v: %w", orphanTime, context.DeadlineExceeded))
	defer cancel()
	return fn(ctx)
}

// Sweep ends the monitors of pods for which live is not true, and kills and deletes the containers that no live pod has
// in its run directory. One that hangs keeps no other from it. The handler of a container's runtime is found by its
// name.
func (r *Runtime) Sweep(ctx context.Context, live func(pod string) bool,
	handler func(name string) (Handler, error)) error {
	// What is listed first is looked for afterwards: a container has its directory before it has anything else.
	states, _ := filepath.Glob(filepath.Join(r.cfg.State, "runtime", "*", "*"))
	groups, _ := filepath.Glob(filepath.Join(r.cfg.Tracking, r.cfg.containersGroup(), "*"))
	pods, _ := filepath.Glob(filepath.Join(r.cfg.Tracking, r.cfg.monitorsGroup(), "*"))
	scopes, err := r.cfg.scopes(ctx)
	errs := []error{err}
	do := func(fn func(context.Context) error) { errs = append(errs, inOrphanTime(ctx, fn)) }
	for _, p := range pods {
		if pod := filepath.Base(p); len(pod) == idLength && !live(pod) {
			do(func(ctx context.Context) error { return r.cfg.endPod(ctx, pod) })
		}
	}
	owned, err := r.cfg.ownedBy(live)
	if err != nil { // what cannot be listed may be what somebody needs
		return errors.Join(append(errs, err)...)
	}
	if r.cfg.Units != nil {
		for _, g := range groups { // their units may be called as another runtime's, which are not listed
			if ctr := filepath.Base(g); len(ctr) == idLength {
				scopes = append(scopes, ctr)
			}
		}
	}
	for _, g := range groups {
		if ctr := filepath.Base(g); len(ctr) == idLength && !owned(ctr) {
			do(func(ctx context.Context) error { return end(ctx, cgroup.At(g)) })
		}
	}
	for _, s := range states {
		if ctr := rememberedAs(filepath.Base(s)); ctr != "" && !owned(ctr) {
			name := filepath.Base(filepath.Dir(s))
			do(func(ctx context.Context) error { return r.cfg.deleteLost(ctx, name, ctr, handler) })
		}
	}
	for _, ctr := range scopes { // last: what the runtime deletes, it deletes with its scope
		if !owned(ctr) {
			do(func(ctx context.Context) error { return r.cfg.Units.EndContainer(ctx, ctr) })
		}
	}
	return errors.Join(errs...)
}

// scopes are the containers for which the init system keeps a unit.
func (c *Config) scopes(ctx context.Context) ([]string, error) {
	if c.Units == nil {
		return nil, nil
	}
	return c.Units.Containers(ctx)
}

// ownedBy says of a container whether a live pod has it in its run directory. It fails where one cannot be listed.
func (c *Config) ownedBy(live func(pod string) bool) (func(ctr string) bool, error) {
	const failed = "find out which containers are pods': no other one is ended: %w"
	pods, err := namesIn(filepath.Join(c.State, "pods"))
	if err != nil {
		return nil, fmt.Errorf(failed, err)
	}
	owned := map[string]bool{}
	for _, pod := range pods {
		if !live(pod) {
			continue
		}
		containers, err := namesIn(filepath.Join(c.dir(pod), "c"))
		if err != nil {
			return nil, fmt.Errorf(failed, err)
		}
		for _, ctr := range containers {
			owned[ctr] = true
		}
	}
	return func(ctr string) bool { return owned[ctr] }, nil
}

// namesIn are the names in a directory; none where it is not there.
func namesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// deleteLost has the runtime kill and delete a container of which only it knows.
func (c *Config) deleteLost(ctx context.Context, name, ctr string, handler func(string) (Handler, error)) error {
	h, err := handler(name)
	if err != nil {
		return fmt.Errorf("container %s, which no pod owns, is of the runtime handler %s: %w", ctr, name, err)
	}
	h.Root = filepath.Join(c.State, "runtime", name)
	return c.deleteState(ctx, ctr, h)
}

// endPod kills a pod's monitor and what lives of its containers.
func (c *Config) endPod(ctx context.Context, pod string) error {
	if err := end(ctx, c.monitorGroup(pod)); err != nil { // first, so that it starts nothing more
		return err
	}
	containers, err := namesIn(filepath.Join(c.dir(pod), "c"))
	if err != nil {
		return err
	}
	for _, ctr := range containers {
		if err := c.clearContainer(ctx, pod, ctr); err != nil {
			return err
		}
		if err := removeGroups(ctx, c, pod, ctr); err != nil {
			return err
		}
	}
	return nil
}
