package pull

import (
	"context"
	"sync"
	"time"

	"berth/bench/internal/footprint"
	"berth/bench/internal/peer"
)

// sample is what one pull cost.
type sample struct {
	wall, durable, cpu time.Duration
	peak, heap, before int64 // resident memory: most, most without its program's pages, before the pull
	written, device    int64 // bytes through write calls; bytes that the disk was given
	grown, grownMost   int64 // of the store: at the end, at most
	received           int64 // bytes from the registry
}

// state is what is read before and after a pull.
type state struct {
	work                   footprint.Work
	used, device, received int64
}

// stand is where a pull is measured: a daemon and its store.
type stand struct {
	peer     *peer.Peer
	pid      int
	disk     *disk
	received func() (int64, error)
}

// quiet is how long a daemon is left alone before a pull and after it, so that what it does behind an answer counts too.
const quiet = 300 * time.Millisecond

// measure pulls and weighs.
func (s *stand) measure(ctx context.Context, image string) (*sample, error) {
	time.Sleep(quiet)
	m := &sample{}
	if err := footprint.ResetPeak(s.pid); err != nil {
		return nil, err
	}
	resident, err := footprint.ResidentOf(s.pid)
	if err != nil {
		return nil, err
	}
	m.before = resident.Now
	begin, err := s.read()
	if err != nil {
		return nil, err
	}
	stop := s.watch(m)
	start := time.Now()
	m.wall, err = s.peer.PullImage(ctx, image)
	if err == nil {
		err = s.disk.sync()
		m.durable = time.Since(start)
		time.Sleep(quiet)
	}
	stop()
	if err != nil {
		return nil, err
	}
	return m, s.finish(m, begin)
}

func (s *stand) finish(m *sample, begin state) error {
	end, err := s.read()
	if err != nil {
		return err
	}
	work := end.work.Sub(begin.work)
	m.cpu, m.written = work.CPU, work.Written
	m.device, m.received, m.grown = end.device-begin.device, end.received-begin.received, end.used-begin.used
	m.grownMost -= begin.used
	resident, err := footprint.ResidentOf(s.pid)
	m.peak = resident.Peak
	return err
}

func (s *stand) read() (now state, err error) {
	if now.work, err = footprint.WorkOf(s.pid); err != nil {
		return now, err
	}
	if now.used, err = s.disk.used(); err != nil {
		return now, err
	}
	if now.device, err = s.disk.written(); err != nil {
		return now, err
	}
	now.received, err = s.received()
	return now, err
}

// tick is how often that is looked at whose highest value the kernel does not keep.
const tick = 10 * time.Millisecond

// watch looks at heap and store until it is stopped.
func (s *stand) watch(m *sample) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for ctx.Err() == nil {
			if resident, err := footprint.ResidentOf(s.pid); err == nil {
				m.heap = max(m.heap, resident.Anonymous)
			}
			if used, err := s.disk.used(); err == nil {
				m.grownMost = max(m.grownMost, used)
			}
			select {
			case <-ctx.Done():
			case <-time.After(tick):
			}
		}
	})
	return func() { cancel(); watcher.Wait() }
}
