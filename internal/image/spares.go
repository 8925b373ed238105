package image

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// spares are the idle unpackers, which may be given another layer.
type spares struct {
	lingering time.Duration // how long one stays idle before it is ended: lingerTimeout, more in tests

	mu        sync.Mutex // guards what follows
	processes []*unpacker
	closed    bool
	leaving   sync.WaitGroup // for those that are being ended
}

// A process stays idle for about as long as the next layer of a pull needs to arrive; at most mostSpare do.
const (
	lingerTimeout = 250 * time.Millisecond
	mostSpare     = 8
)

// take returns a process that suits a task: of several, the one that has had the most layers.
func (s *spares) take(t task) (found *unpacker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		if (found == nil || len(p.had) > len(found.had)) && p.suits(t) {
			found = p
		}
	}
	if found != nil {
		found.expiry.Stop()
		s.removeLocked(found)
	}
	return found
}

// add adds an idle process. It is ended if it stays idle for too long.
func (s *spares) add(p *unpacker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.processes) >= mostSpare {
		s.endLocked(p)
		return
	}
	p.expiry = time.AfterFunc(cmp.Or(s.lingering, lingerTimeout), func() { s.expire(p) })
	s.processes = append(s.processes, p)
}

func (s *spares) expire(p *unpacker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removeLocked(p) {
		s.endLocked(p)
	}
}

// removeLocked removes a process, and reports whether it was there.
func (s *spares) removeLocked(p *unpacker) bool {
	i := slices.Index(s.processes, p)
	if i < 0 {
		return false
	}
	s.processes = slices.Delete(s.processes, i, i+1)
	return true
}

func (s *spares) endLocked(p *unpacker) { s.leaving.Go(p.dismiss) }

// close ends all processes and waits until they are gone.
func (s *spares) close() {
	s.mu.Lock()
	s.closed = true
	for _, p := range s.processes {
		p.expiry.Stop()
		s.endLocked(p)
	}
	s.processes = nil
	s.mu.Unlock()
	s.leaving.Wait()
}
