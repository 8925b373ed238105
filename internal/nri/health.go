package nri

import (
	"fmt"
	"slices"
	"sync"
)

// Status is how NRI is, for people.
type Status struct {
	On       bool
	Failed   string   // why it is not on
	Socket   string   // where plugins connect; "" where none can
	Plugins  int      // how many take part, as of the last event
	Names    []string // theirs, where they are known
	Problems []string // what of it does not work
}

// maxProblems is how many problems of the start are kept.
const maxProblems = 16

// health knows what went wrong at the start.
type health struct {
	mu       sync.Mutex // guards all below
	starting bool
	failed   string
	problems []string
}

// begin has note keep what it is told until end is called: what happens later is in the log.
func (h *health) begin() (end func()) {
	set := func(to bool) {
		h.mu.Lock()
		h.starting = to
		h.mu.Unlock()
	}
	set(true)
	return func() { set(false) }
}

func (h *health) isStarting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.starting
}

func (h *health) note(problem string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.starting && len(h.problems) < maxProblems {
		h.problems = append(h.problems, problem)
	}
}

func (h *health) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = err.Error()
}

// seen is what went wrong: why NRI is off, "" where it is on, and what of it does not work.
func (h *health) seen() (failed string, problems []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed, slices.Clone(h.problems)
}

// warn says in the log, and in Status, what of NRI does not work.
func (p *Plugins) warn(what string, err error) {
	p.cfg.Log.Warn("NRI is on, but not all of it: "+what, "error", err)
	p.health.note(fmt.Sprintf("%s: %v", what, err))
}

// Status never waits for a plugin. It is for after Start.
func (p *Plugins) Status() Status {
	s := Status{On: p.a != nil}
	s.Failed, s.Problems = p.health.seen()
	if s.On {
		s.Plugins, s.Names = p.roll.present()
	}
	if s.Plugins == len(s.Names) {
		for _, name := range p.cfg.missing(s.Names) {
			s.Problems = append(s.Problems,
				fmt.Sprintf("plugin %s, without which no container is made, does not take part", name))
		}
	}
	if !s.On {
		return s
	}
	switch {
	case p.socket == nil:
	case p.socket.placed.Ours():
		s.Socket = p.socket.path
	default:
		s.Problems = append(s.Problems,
			fmt.Sprintf("plugins cannot connect: %s was removed or replaced by another process", p.socket.path))
	}
	return s
}
