package pod

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"time"

	"berth/internal/rootfs"
)

// usageFresh is how long a reading of the writable layers serves before a read starts another.
const usageFresh = 30 * time.Second

// usageLimit bounds one reading of all writable layers.
const usageLimit = 5 * time.Minute

// usageRate bounds the entries that a reading looks at, in entries a second, so that it does not compete with containers.
const usageRate = 20000

// Usage is the room that the writable layers of all containers take, as it was at a time.
type Usage struct {
	Bytes, Inodes uint64
	At            time.Time
}

// usageReading is the last reading and whether another is under way.
type usageReading struct {
	last atomic.Pointer[Usage]
	busy atomic.Bool
}

// Usage returns the last reading of the writable layers and, when it has gone stale, starts another in the background. It
// never waits: before the first reading ends it answers zero, with the time of the question.
func (s *Pods) Usage() Usage {
	last := s.usage.last.Load()
	if (last == nil || time.Since(last.At) > usageFresh) && s.usage.busy.CompareAndSwap(false, true) {
		s.background(func(ctx context.Context) {
			defer s.usage.busy.Store(false)
			ctx, cancel := context.WithTimeout(ctx, usageLimit)
			defer cancel()
			if u, ok := readUsage(ctx, s); ok {
				s.usage.last.Store(&u)
			}
		})
	}
	if last == nil {
		return Usage{At: time.Now()}
	}
	return *last
}

func readUsage(ctx context.Context, s *Pods) (Usage, bool) {
	u := Usage{At: time.Now()}
	for _, p := range s.index.Load().pods {
		for _, c := range p.rec.Load().Containers {
			bytes, inodes, err := rootfs.Usage(ctx, filepath.Join(s.cfg.writable(p.id, c.ID), "upper"), usageRate)
			if ctx.Err() != nil {
				return u, false
			}
			if err == nil { // one that vanished meanwhile takes no room
				u.Bytes, u.Inodes = u.Bytes+bytes, u.Inodes+inodes
			}
		}
	}
	return u, true
}
