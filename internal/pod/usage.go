package pod

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/rootfs"
)

// A reading of the writable layers serves for ten times as long as it took, but within these bounds, before a read starts
// another.
const (
	usageFreshest = 2 * time.Second
	usageStalest  = 2 * time.Minute
)

// usageLimit bounds the reading of one writable layer.
const usageLimit = 5 * time.Minute

// usageRate bounds the entries that a reading looks at, in entries a second, so that it does not compete with containers.
const usageRate = 20000

// Usage is the room that writable layers take, as it was at a time.
type Usage struct {
	Bytes, Inodes uint64
	At            time.Time
}

// usageReading is what the last reading found, and whether another is under way.
type usageReading struct {
	total atomic.Pointer[Usage]
	until atomic.Pointer[time.Time] // it serves so long
	layer sync.Map                  // ID of a container to its Usage
	busy  atomic.Bool
}

// Usage returns the last reading of all writable layers and, when it has gone stale, starts another in the background. It
// never waits: before the first reading ends it answers zero, with the time of the question.
func (s Meter) Usage() Usage {
	s.readStaleUsage()
	if last := s.usage.total.Load(); last != nil {
		return *last
	}
	return Usage{At: time.Now()}
}

// writableUsage returns the room that one container's writable layer takes: as the file system knows it at any time, or by the
// last reading, as Usage does. Of a layer that was not read yet it tells the directory alone, at the time when it was made.
func (s Meter) writableUsage(id ID, c *Container) Usage {
	if s.projects {
		now := time.Now()
		if bytes, inodes, err := rootfs.ProjectUsage(s.cfg.writable(id, c.ID)); err == nil {
			return Usage{bytes, inodes, now}
		}
	}
	s.readStaleUsage()
	if u, ok := s.usage.layer.Load(c.ID); ok {
		return u.(Usage)
	}
	u := Usage{At: c.CreatedAt}
	var st unix.Stat_t
	if unix.Lstat(filepath.Join(s.cfg.writable(id, c.ID), "upper"), &st) == nil {
		u.Bytes, u.Inodes = uint64(st.Blocks)*512, 1
	}
	return u
}

// readStaleUsage starts a reading in the background when it is time for one.
func (s Meter) readStaleUsage() {
	if until := s.usage.until.Load(); until != nil && time.Now().Before(*until) || !s.usage.busy.CompareAndSwap(false, true) {
		return
	}
	s.background(func(ctx context.Context) {
		defer s.usage.busy.Store(false)
		began := time.Now()
		if !s.readUsage(ctx) {
			return
		}
		until := time.Now().Add(min(max(10*time.Since(began), usageFreshest), usageStalest))
		s.usage.until.Store(&until)
	})
}

// readUsage reads every writable layer. It is false when the daemon ends meanwhile.
func (s Meter) readUsage(ctx context.Context) bool {
	sum, there := Usage{At: time.Now()}, map[ID]bool{}
	for _, p := range s.index.Load().pods {
		for _, c := range p.rec.Load().Containers {
			there[c.ID] = true
			u, err := s.readLayer(ctx, s.cfg.writable(p.id, c.ID))
			if ctx.Err() != nil {
				return false
			}
			if err != nil { // one that vanished meanwhile takes no room; of one that takes too long, what was known still is
				u = Usage{}
				if last, ok := s.usage.layer.Load(c.ID); ok && !errors.Is(err, fs.ErrNotExist) {
					u = last.(Usage)
				}
			} else {
				s.usage.layer.Store(c.ID, u)
			}
			sum.Bytes, sum.Inodes = sum.Bytes+u.Bytes, sum.Inodes+u.Inodes
		}
	}
	s.usage.layer.Range(func(id, _ any) bool {
		if !there[id.(ID)] {
			s.usage.layer.Delete(id)
		}
		return true
	})
	s.usage.total.Store(&sum)
	return true
}

// readLayer reads one writable layer, by its project where it has one.
func (s Meter) readLayer(ctx context.Context, dir string) (u Usage, err error) {
	if s.projects {
		u.At = time.Now()
		if u.Bytes, u.Inodes, err = rootfs.ProjectUsage(dir); err == nil {
			return u, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, usageLimit)
	defer cancel()
	u.Bytes, u.Inodes, err = rootfs.Usage(ctx, filepath.Join(dir, "upper"), usageRate)
	u.At = time.Now()
	return u, err
}
