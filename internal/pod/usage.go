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
	"berth/internal/sandbox"
)

// A reading of the writable layers serves for ten times as long as it took, but within these bounds, before a read
// starts another.
const (
	usageFreshest = 2 * time.Second
	usageStalest  = 2 * time.Minute
)

// usageLimit bounds the reading of one writable layer, usageShort that of a layer that others wait for. One that takes
// longer is read beside the others: a container that makes a million directories delays its own numbers.
const (
	usageLimit = 5 * time.Minute
	usageShort = 2 * time.Second
)

// usageRate bounds the entries that a reading looks at, in entries a second, so that it does not compete with
// containers.
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
	long  atomic.Bool // layers that take long are being read
}

// layerOf is the writable layer of a container.
type layerOf struct {
	container sandbox.ID
	dir       string
}

// Usage returns the last reading of all writable layers and, when it has gone stale, starts another in the background.
// It never waits: before the first reading ends it answers zero, with the time of the question.
func (s Meter) Usage() Usage {
	s.readStaleUsage()
	if last := s.usage.total.Load(); last != nil {
		return *last
	}
	return Usage{At: time.Now()}
}

// writableUsage returns the room that one container's writable layer takes: as the file system knows it at any time, or
// by the last reading, as Usage does. Of a layer that was not read yet it tells the directory alone, at the time when
// it was made.
func (s Meter) writableUsage(id sandbox.ID, c *sandbox.Container) Usage {
	if s.projects {
		if u, err := projectUsage(s, layerOf{c.ID, s.cfg.Writable(id, c.ID)}); err == nil {
			return u
		}
	}
	s.readStaleUsage()
	if u, ok := s.usage.layer.Load(c.ID); ok {
		return u.(Usage)
	}
	u := Usage{At: c.CreatedAt}
	var st unix.Stat_t
	if unix.Lstat(filepath.Join(s.cfg.Writable(id, c.ID), "upper"), &st) == nil {
		u.Bytes, u.Inodes = uint64(st.Blocks)*512, 1
	}
	return u
}

// projectUsage is what the project of a layer takes, with what has left it.
func projectUsage(s Meter, l layerOf) (Usage, error) {
	now := time.Now()
	bytes, inodes, err := rootfs.ProjectUsage(l.dir)
	left := s.strays.of(l.container)
	return Usage{bytes + left.bytes, inodes + left.inodes, now}, err
}

// readStaleUsage starts a reading in the background when it is time for one.
func (s Meter) readStaleUsage() {
	if until := s.usage.until.Load(); until != nil && time.Now().Before(*until) || !s.usage.busy.CompareAndSwap(false,
		true) {
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
	sum, there := Usage{At: time.Now()}, map[sandbox.ID]bool{}
	var long []layerOf
	for _, p := range s.index.Load().pods {
		for _, c := range p.rec.Load().Containers {
			there[c.ID] = true
			l := layerOf{c.ID, s.cfg.Writable(p.id, c.ID)}
			u, err := s.readLayer(ctx, l, usageShort)
			if ctx.Err() != nil {
				return false
			}
			if errors.Is(err, context.DeadlineExceeded) {
				long = append(long, l)
			}
			sum.Bytes, sum.Inodes = sum.Bytes+u.Bytes, sum.Inodes+u.Inodes
		}
	}
	s.usage.layer.Range(func(id, _ any) bool {
		if !there[id.(sandbox.ID)] {
			s.usage.layer.Delete(id)
		}
		return true
	})
	s.usage.total.Store(&sum)
	readLong(s, long)
	return true
}

// readLong reads layers that take long, in the background, unless some are being read.
func readLong(s Meter, layers []layerOf) {
	if len(layers) == 0 || !s.usage.long.CompareAndSwap(false, true) {
		return
	}
	s.background(func(ctx context.Context) {
		defer s.usage.long.Store(false)
		for _, l := range layers {
			_, _ = s.readLayer(ctx, l, usageLimit) // what was known of it stays
		}
	})
}

// readLayer reads one writable layer, by its project where it has one, and keeps what it finds. Of one that vanished
// meanwhile it returns nothing, and of one that takes too long what was known. What could be counted in part is as
// large as it was at least.
func (s Meter) readLayer(ctx context.Context, l layerOf, most time.Duration) (u Usage, err error) {
	if s.projects {
		if u, err = projectUsage(s, l); err == nil {
			s.usage.layer.Store(l.container, u)
			return u, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	u.Bytes, u.Inodes, err = rootfs.Usage(ctx, filepath.Join(l.dir, "upper"), usageRate)
	u.At = time.Now()
	var last Usage
	if known, ok := s.usage.layer.Load(l.container); ok {
		last = known.(Usage)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Usage{}, err
	case errors.Is(err, rootfs.ErrIncomplete):
		u.Bytes, u.Inodes = max(u.Bytes, last.Bytes), max(u.Inodes, last.Inodes)
	case err != nil:
		return last, err
	}
	s.usage.layer.Store(l.container, u)
	return u, nil
}
