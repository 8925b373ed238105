package meter

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/look"
	"berth/internal/rootfs"
	"berth/internal/sandbox"
)

// A reading of the writable layers serves for ten times as long as it took, but within these bounds, before a read
// starts another.
const (
	usageFreshest = 2 * time.Second
	usageStalest  = 2 * time.Minute
)

// usageShort bounds the reading of a writable layer that others wait for. One that takes longer is read beside the
// others: a container that makes a million directories delays its own numbers.
const usageShort = 2 * time.Second

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
	long  longLayers
}

// layerOf is the writable layer of a container.
type layerOf struct {
	container sandbox.ID
	dir       string
}

// Usage returns the last reading of all writable layers and, when it has gone stale, starts another in the background.
// It never waits: before the first reading ends it answers zero, with the time of the question.
func (m *Meter) Usage() Usage {
	m.readStaleUsage()
	if last := m.usage.total.Load(); last != nil {
		return *last
	}
	return Usage{At: time.Now()}
}

// writableUsage returns the room that one container's writable layer takes: as the file system knows it at any time, or
// by the last reading, as Usage does. Of a layer that was not read yet it tells the directory alone, at the time when
// it was made; and nothing when the disk does not answer.
func (m *Meter) writableUsage(id sandbox.ID, c *sandbox.Container) Usage {
	dir := m.cfg.Layout.Writable(id, c.ID)
	if m.cfg.Projects {
		u, err := look.Now(m.disk, func() (Usage, error) { return projectUsage(m, layerOf{c.ID, dir}) })
		if err == nil {
			return u
		}
	}
	m.readStaleUsage()
	if u, ok := m.usage.layer.Load(c.ID); ok {
		return u.(Usage)
	}
	u, err := look.Now(m.disk, func() (u Usage, err error) {
		var st unix.Stat_t
		err = unix.Lstat(filepath.Join(dir, "upper"), &st)
		return Usage{Bytes: uint64(st.Blocks) * 512, Inodes: 1}, err
	})
	if err != nil {
		u = Usage{}
	}
	u.At = c.CreatedAt
	return u
}

// projectUsage is what the project of a layer takes, with what has left it.
func projectUsage(m *Meter, l layerOf) (Usage, error) {
	now := time.Now()
	bytes, inodes, err := rootfs.ProjectUsage(l.dir)
	left := m.Strays.of(l.container)
	return Usage{bytes + left.bytes, inodes + left.inodes, now}, err
}

// readStaleUsage starts a reading in the background when it is time for one.
func (m *Meter) readStaleUsage() {
	if until := m.usage.until.Load(); until != nil && time.Now().Before(*until) || !m.usage.busy.CompareAndSwap(false,
		true) {
		return
	}
	m.cfg.Background(func(ctx context.Context) {
		defer m.usage.busy.Store(false)
		began := time.Now()
		if !m.readUsage(ctx) {
			return
		}
		until := time.Now().Add(min(max(10*time.Since(began), usageFreshest), usageStalest))
		m.usage.until.Store(&until)
	})
}

// readUsage reads every writable layer. It is false when the daemon ends meanwhile.
func (m *Meter) readUsage(ctx context.Context) bool {
	sum, there := Usage{At: time.Now()}, map[sandbox.ID]bool{}
	var long []layerOf
	for r := range m.cfg.Records {
		for _, c := range r.Containers {
			there[c.ID] = true
			l := layerOf{c.ID, m.cfg.Layout.Writable(r.ID, c.ID)}
			u, err := m.readLayer(ctx, l, usageShort, usageRate)
			if ctx.Err() != nil {
				return false
			}
			if errors.Is(err, context.DeadlineExceeded) {
				long = append(long, l)
			}
			sum.Bytes, sum.Inodes = sum.Bytes+u.Bytes, sum.Inodes+u.Inodes
		}
	}
	m.usage.layer.Range(func(id, _ any) bool {
		if !there[id.(sandbox.ID)] {
			m.usage.layer.Delete(id)
		}
		return true
	})
	m.usage.total.Store(&sum)
	for _, l := range m.usage.long.begin(long) {
		m.cfg.Background(func(ctx context.Context) { readLong(ctx, m, l) })
	}
	return true
}

// readLayer reads one writable layer, by its project where it has one, and keeps what it finds. Of one that vanished
// meanwhile it returns nothing. What could be counted in part, in the time that it may take or because some could not
// be read, is as large as it was at least.
func (m *Meter) readLayer(ctx context.Context, l layerOf, most time.Duration, rate int) (u Usage, err error) {
	if m.cfg.Projects {
		if u, err = projectUsage(m, l); err == nil {
			m.usage.layer.Store(l.container, u)
			return u, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	u.Bytes, u.Inodes, err = rootfs.Usage(ctx, filepath.Join(l.dir, "upper"), rate)
	u.At = time.Now()
	var last Usage
	if known, ok := m.usage.layer.Load(l.container); ok {
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
	m.usage.layer.Store(l.container, u)
	return u, err
}
