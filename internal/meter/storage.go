package meter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"berth/internal/look"
	"berth/internal/rootfs"
	"berth/internal/sandbox"
)

// storageEvery is how often containers with a limit are looked at.
const storageEvery = 10 * time.Second

// ReasonStorageLimit is the reason that Reached is told of what a container writes to its root.
const ReasonStorageLimit = "StorageLimit"

// A container has reached its limit when less than a hundredth of it is left, but at most storageRest bytes: the file
// system gives room by the block. It is below the limit again when a twentieth is left.
const storageRest = 1 << 20

// StorageWatch knows which containers have written all that they may.
type StorageWatch struct {
	meter *Meter

	mu    sync.Mutex // guards what follows; nothing is locked below it
	full  map[sandbox.ID]StorageFull
	count uint64
}

// StorageFull is a container that has written all that it may.
type StorageFull struct {
	Pod, Container sandbox.ID
	What           string
	Kept           bool // by the file system: it gets no more
	Since          time.Time
}

// Full tells which containers are at their limits now, and how often any has reached one. It never waits.
func (w *StorageWatch) Full() (full []StorageFull, reached uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.full {
		full = append(full, f)
	}
	return full, w.count
}

// reached says which limit a container has reached; "" for none. was says that it had reached one when it was last
// looked at.
func reached(s sandbox.Storage, used Usage, was bool) string {
	for _, l := range []struct {
		what        string
		used, limit uint64
		rest        uint64
	}{
		{"bytes", used.Bytes, s.Bytes, min(s.Bytes/100, storageRest)},
		{"files and directories", used.Inodes, s.Inodes, s.Inodes / 100},
	} {
		if was {
			l.rest = l.limit / 20
		}
		if l.limit > 0 && l.used+l.rest >= l.limit {
			return fmt.Sprintf("%d of the %d %s that it may write to its root", l.used, l.limit, l.what)
		}
	}
	return ""
}

// Watch looks at all containers with a limit until ctx ends.
func (w *StorageWatch) Watch(ctx context.Context) {
	for {
		w.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(storageEvery):
		}
	}
}

// look tells of each container that has reached a limit since it was last looked at: once, until there is room
// again.
func (w *StorageWatch) look(ctx context.Context) {
	there := map[sandbox.ID]bool{}
	for r := range w.meter.cfg.Records {
		for _, c := range r.Containers {
			if ctx.Err() != nil {
				return
			}
			if !c.Live() || c.Storage.Unlimited() {
				continue
			}
			there[c.ID] = true
			w.mu.Lock()
			_, was := w.full[c.ID]
			w.mu.Unlock()
			use, _ := w.meter.StorageOf(r, c)
			if what := reached(use.Storage, use.Usage, was); what == "" {
				w.roomAgain(c.ID)
			} else if w.fill(StorageFull{r.ID, c.ID, what, use.Kept, time.Now()}) {
				log := w.meter.cfg.Log
				log.Warn("a container has reached a limit", "pod", r.ID, "container", c.ID, "written", what, "kept", use.Kept)
				w.meter.cfg.Reached(r, c.ID, ReasonStorageLimit, what)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.full, func(id sandbox.ID, _ StorageFull) bool { return !there[id] })
}

// fill reports whether the container had room before.
func (w *StorageWatch) fill(f StorageFull) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if was, ok := w.full[f.Container]; ok {
		f.Since = was.Since
		w.full[f.Container] = f
		return false
	}
	if w.full == nil {
		w.full = map[sandbox.ID]StorageFull{}
	}
	w.full[f.Container] = f
	w.count++
	return true
}

func (w *StorageWatch) roomAgain(id sandbox.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.full, id)
}

// StorageUse is what a container may write to its root, and what it has written.
type StorageUse struct {
	sandbox.Storage
	Usage
	// Kept says that the file system keeps the container to its limits. Else it is only watched.
	Kept bool
}

// StorageInfo is a StorageUse as clients are told it. A limit of 0 is none.
type StorageInfo struct {
	LimitBytes  uint64 `json:"limitBytes"`
	LimitInodes uint64 `json:"limitInodes"`
	UsedBytes   uint64 `json:"usedBytes"`
	UsedInodes  uint64 `json:"usedInodes"`
	Kept        bool   `json:"kept"` // by the file system
}

// Info is u as clients are told it.
func (u StorageUse) Info() StorageInfo {
	return StorageInfo{u.Storage.Bytes, u.Storage.Inodes, u.Usage.Bytes, u.Usage.Inodes, u.Kept}
}

// StorageOf tells of a container's limits. It is not ok where it has none. While the disk does not answer, limits are
// said to be kept where the file system keeps account of projects.
func (m *Meter) StorageOf(r *sandbox.Record, c *sandbox.Container) (u StorageUse, ok bool) {
	if c.Storage.Unlimited() {
		return u, false
	}
	u.Storage, u.Usage = *c.Storage, m.Writable(r, c)
	q, err := look.Now(m.disk, func() (rootfs.Quota, error) {
		return rootfs.QuotaOf(m.cfg.Layout.Writable(r.ID, c.ID))
	})
	u.Kept = err == nil && !q.Unlimited() || errors.Is(err, look.ErrHangs) && m.cfg.Projects
	return u, true
}

// problems are the containers that go on writing beyond their limits.
func (w *StorageWatch) problems() (all []sandbox.Problem) {
	full, _ := w.Full()
	for _, f := range full {
		if !f.Kept {
			what := fmt.Sprintf("container %s has written %s, and goes on: the file system has no project quota",
				f.Container, f.What)
			all = append(all, sandbox.Problem{Pod: f.Pod, What: what, Since: f.Since})
		}
	}
	return all
}
