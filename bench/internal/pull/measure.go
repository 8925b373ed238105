package pull

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"berth/bench/internal/disk"
	"berth/bench/internal/footprint"
	"berth/bench/internal/kubelet"
	"berth/bench/internal/peer"
)

// sample is what one pull cost.
type sample struct {
	wall, durable, cpu time.Duration
	start              time.Duration // of a pod's
	peak, before       int64         // resident memory: most, before the pull
	written, device    int64         // bytes through write calls; bytes that the disk was given
	grown              int64         // of the store, at the end
	received           int64         // bytes from the registry
	seen               *seen         // nil unless the pull was watched
}

// seen are the highest values of what the kernel keeps no highest value of.
type seen struct {
	heap     int64 // resident memory of the daemon without its program's pages
	together int64 // of the daemon and all that it has started; shared pages once
	apart    int64 // the same, with shared pages in each
	grown    int64 // of the store
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
	disk     *disk.Disk
	received func() (int64, error)
	pods     []*kubelet.Pod
}

// quiet is how long a daemon is left alone before a pull and after it, so that what it does behind an answer counts
// too. A process of Berth that has unpacked waits a quarter of a second for another layer, and counts once it has
// ended.
const quiet = 600 * time.Millisecond

// measure pulls and weighs. With starts a pod is started then, whose container is of the image. A pull that is watched
// takes longer than others.
func (s *stand) measure(ctx context.Context, image string, starts, watched bool) (*sample, error) {
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
	stop := func() {}
	if watched {
		m.seen = &seen{}
		stop = s.watch(m.seen)
	}
	start := time.Now()
	m.wall, err = s.peer.PullImage(ctx, image)
	if err == nil && starts {
		m.start, err = s.startPod(ctx, image)
	}
	if err == nil {
		err = s.disk.Sync()
		m.durable = time.Since(start)
		time.Sleep(quiet)
	}
	stop()
	if err != nil {
		return nil, err
	}
	return m, s.finish(m, begin)
}

// startPod starts a pod, and says how long that took.
func (s *stand) startPod(ctx context.Context, image string) (time.Duration, error) {
	s.peer.Image = image
	pod, phases, err := s.peer.Start(ctx, false)
	if err == nil {
		s.pods = append(s.pods, pod)
	}
	return phases.Total(), err
}

// close discards the pods.
func (s *stand) close() (err error) {
	for _, pod := range s.pods {
		err = errors.Join(err, pod.Discard())
	}
	return errors.Join(err, os.RemoveAll(s.peer.Dir)) // what a kubelet keeps of pods
}

func (s *stand) finish(m *sample, begin state) error {
	end, err := s.read()
	if err != nil {
		return err
	}
	work := end.work.Sub(begin.work)
	m.cpu, m.written = work.CPU, work.Written
	m.device, m.received, m.grown = end.device-begin.device, end.received-begin.received, end.used-begin.used
	if m.seen != nil {
		m.seen.grown -= begin.used
	}
	resident, err := footprint.ResidentOf(s.pid)
	m.peak = resident.Peak
	return err
}

func (s *stand) read() (now state, err error) {
	if now.work, err = footprint.WorkOf(s.pid); err != nil {
		return now, err
	}
	if now.used, err = s.disk.Used(); err != nil {
		return now, err
	}
	if now.device, err = s.disk.Written(); err != nil {
		return now, err
	}
	now.received, err = s.received()
	return now, err
}

// tick is how often that is looked at whose highest value the kernel does not keep.
const tick = 10 * time.Millisecond

// watch looks at heap and store until it is stopped. To weigh a process the kernel walks its page tables. And whoever
// reaps a process whose /proc directory another is about to close waits for that, with its processor busy.
func (s *stand) watch(m *seen) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for ctx.Err() == nil {
			if resident, err := footprint.ResidentOf(s.pid); err == nil {
				m.heap = max(m.heap, resident.Anonymous)
				m.apart = max(m.apart, resident.Now+footprint.ResidentBelow(s.pid))
				m.together = max(m.together, footprint.OccupiedWithBelow(s.pid))
			}
			if used, err := s.disk.Used(); err == nil {
				m.grown = max(m.grown, used)
			}
			select {
			case <-ctx.Done():
			case <-time.After(tick):
			}
		}
	})
	return func() { cancel(); watcher.Wait() }
}
