package monitor

import (
	"sync"

	"berth/internal/monitor/wire"
)

// subscribers are the daemons that are told of exits.
type subscribers struct {
	mu  sync.Mutex // guards what follows
	all map[*conn]struct{}
}

// add sends exits to a daemon from now on.
func (s *subscribers) add(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*conn]struct{}{}
	}
	s.all[c] = struct{}{}
}

func (s *subscribers) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, c)
}

// publish sends a message to every daemon, and reports whether it has reached one.
func (s *subscribers) publish(r *wire.Reply) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := false
	for c := range s.all {
		if c.send(r) == nil {
			told = true
		}
	}
	return told
}
