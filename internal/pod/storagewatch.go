package pod

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"berth/internal/sandbox"
)

// storageEvery is how often containers with a limit are looked at.
const storageEvery = 10 * time.Second

// ReasonStorageLimit is the reason of an EventLimit.
const ReasonStorageLimit = "StorageLimit"

// A container has reached its limit when less than a hundredth of it is left, but at most storageRest bytes: the file
// system gives room by the block. It is below the limit again when a twentieth is left.
const storageRest = 1 << 20

// storageWatch knows which containers have written all that they may.
type storageWatch struct {
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

// FullStorage tells which containers are at their limits now, and how often any has reached one. It never waits.
func FullStorage(s *Pods) (full []StorageFull, reached uint64) {
	w := &s.storage
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

// watchStorage looks at all containers with a limit until the daemon ends.
func watchStorage(ctx context.Context, s *Pods, every time.Duration) {
	for {
		lookAtStorage(ctx, s)
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// lookAtStorage tells of each container that has reached a limit since it was last looked at: once, until there is room
// again.
func lookAtStorage(ctx context.Context, s *Pods) {
	w, there := &s.storage, map[sandbox.ID]bool{}
	for _, p := range s.index.Load().pods {
		r := p.rec.Load()
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
			use, _ := StorageOf(Meter{s}, r, c)
			if what := reached(use.Storage, use.Usage, was); what == "" {
				w.roomAgain(c.ID)
			} else if w.fill(StorageFull{r.ID, c.ID, what, use.Kept, time.Now()}) {
				s.cfg.Log.Warn("a container has reached a limit", "pod", r.ID, "container", c.ID, "written", what, "kept", use.Kept)
				s.publish(Event{Kind: EventLimit, ID: c.ID, At: time.Now(), Record: r, Reason: ReasonStorageLimit, Message: what})
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.full, func(id sandbox.ID, _ StorageFull) bool { return !there[id] })
}

// fill says whether the container had room before.
func (w *storageWatch) fill(f StorageFull) bool {
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

func (w *storageWatch) roomAgain(id sandbox.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.full, id)
}
