package helper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

const (
	// killTimeout is how long processes that were sent SIGKILL may take to go. What takes longer hangs in the kernel.
	killTimeout = 5 * time.Second
	// sweepTimeout is the same for everything that an earlier runner has left, together: a start waits no longer, however
	// much of it hangs. What takes longer is looked at again, and holds up only what runs under its name.
	sweepTimeout = time.Second
	// lookAgain is how often groups that hang are looked at again.
	lookAgain = 5 * time.Second
)

// withTimeout bounds a wait for killed processes. A test counts the waits.
var withTimeout = context.WithTimeout

// hung are the groups that SIGKILL has not emptied.
type hung struct {
	mu    sync.Mutex // guards what follows
	names map[string][]stuckGroup
	timer *time.Timer // looks again; nil while nothing hangs
}

type stuckGroup struct {
	*cgroup.Group
	since time.Time
}

// Stuck is a group of processes that do not die of SIGKILL.
type Stuck struct {
	Name  string // what they ran under
	Since time.Time
	*StuckError
}

// Sweep kills and removes every group that a runner which is gone left below Root, or below one of others, where an
// earlier runner of the same names had its own. Call it before the first Run.
//
// It kills all of them, waits once for all together, and returns a *StuckError for each that has not ended: nothing is
// run under the name of such a group until it has.
func (r *Runner) Sweep(others ...string) error {
	var left []namedGroup
	var errs []error
	for _, root := range append([]string{r.Root}, others...) {
		found, err := groupsBelow(root)
		left, errs = append(left, found...), append(errs, err)
	}
	left = slices.DeleteFunc(left, func(g namedGroup) bool {
		gone, err := kill(g.Group)
		errs = append(errs, err)
		return gone
	})
	if len(left) == 0 {
		return errors.Join(errs...)
	}
	ctx, cancel := withTimeout(context.Background(), sweepTimeout)
	defer cancel()
	for _, g := range left {
		if err := await(ctx, g.Group); err != nil {
			r.remember(g.name, g.Group)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

type namedGroup struct {
	name string // what was run in it
	*cgroup.Group
}

// groupsBelow lists what Run has made below a root.
func groupsBelow(root string) (all []namedGroup, err error) {
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("sweep helpers: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		name := e.Name()
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i]
		}
		all = append(all, namedGroup{name, cgroup.At(filepath.Join(root, e.Name()))})
	}
	return all, nil
}

// Stuck lists what hangs at the moment, the longest first.
func (h *hung) Stuck() []Stuck {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []Stuck
	for name, groups := range h.names {
		for _, g := range groups {
			all = append(all, Stuck{name, g.since, stuckError(g.Group, nil)})
		}
	}
	slices.SortFunc(all, func(a, b Stuck) int {
		if n := a.Since.Compare(b.Since); n != 0 {
			return n
		}
		return strings.Compare(a.Group, b.Group)
	})
	return all
}

// clear empties and removes a group. One that cannot be emptied is remembered.
func (h *hung) clear(name string, group *cgroup.Group) error {
	gone, err := kill(group)
	if gone {
		return nil
	}
	if err == nil {
		ctx, cancel := withTimeout(context.Background(), killTimeout)
		defer cancel()
		err = await(ctx, group)
	}
	if err != nil {
		h.remember(name, group)
	}
	return err
}

// clearHung clears what hangs under name, or says that it still does.
func (h *hung) clearHung(ctx context.Context, name string) error {
	groups := h.under(name)
	if len(groups) == 0 {
		return nil
	}
	var errs []error
	for _, g := range groups {
		_, err := kill(g.Group)
		errs = append(errs, err)
	}
	ctx, cancel := withTimeout(ctx, killTimeout)
	defer cancel()
	for _, g := range groups {
		err := await(ctx, g.Group)
		if errs = append(errs, err); err == nil {
			h.forget(name, g.Group)
		}
	}
	return errors.Join(errs...)
}

func (h *hung) under(name string) []stuckGroup {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.names[name])
}

func (h *hung) remember(name string, group *cgroup.Group) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.names == nil {
		h.names = map[string][]stuckGroup{}
	}
	h.names[name] = append(h.names[name], stuckGroup{group, time.Now()})
	if h.timer == nil {
		h.timer = time.AfterFunc(lookAgain, h.look)
	}
}

func (h *hung) forget(name string, group *cgroup.Group) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names[name] = slices.DeleteFunc(h.names[name], func(g stuckGroup) bool { return g.Path() == group.Path() })
	if len(h.names[name]) == 0 {
		delete(h.names, name)
	}
}

// look removes the groups whose processes have ended meanwhile, and looks again later while some are left. It holds mu
// all along: a group that is not in names any more may have been made anew, for a program that runs.
func (h *hung) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, groups := range h.names {
		h.names[name] = slices.DeleteFunc(groups, func(g stuckGroup) bool {
			gone, _ := kill(g.Group)
			return gone
		})
		if len(h.names[name]) == 0 {
			delete(h.names, name)
		}
	}
	if h.timer = nil; len(h.names) > 0 {
		h.timer = time.AfterFunc(lookAgain, h.look)
	}
}

// kill removes a group that is empty, which is then gone, and sends SIGKILL to what is in one that is not.
func kill(g *cgroup.Group) (gone bool, err error) {
	// A group can be removed exactly when it is empty, so in the common case one call proves and removes it.
	if err := g.Remove(); err == nil || !errors.Is(err, unix.EBUSY) {
		return err == nil, err
	}
	return false, g.Kill()
}

// await waits until a killed group is empty, and removes it.
func await(ctx context.Context, g *cgroup.Group) error {
	if err := g.WaitEmpty(ctx); err != nil {
		return stuckError(g, err)
	}
	return g.Remove()
}

// StuckError says that processes did not die of SIGKILL: they hang in the kernel, mostly on a device or a file server
// that does not answer.
type StuckError struct {
	Group string
	Pids  []int
	Cause error
}

func stuckError(g *cgroup.Group, cause error) *StuckError {
	pids, _ := g.Pids()
	return &StuckError{Group: g.Path(), Pids: pids, Cause: cause}
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("processes %v of %s do not die of SIGKILL: they hang in the kernel (see /proc/<pid>/stack); "+
		"free what they wait for, or reboot", e.Pids, e.Group)
}

func (e *StuckError) Unwrap() error { return e.Cause }
