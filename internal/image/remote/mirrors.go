package remote

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

// mirrorSet tries the mirrors of a reference in order until one succeeds or none is left.
type mirrorSet struct {
	op      string
	clock   clock
	secrets []string

	mu     sync.Mutex // guards what follows and each state
	states []*mirrorState
	asked  *mirrorState // the mirror that was asked last
}

// mirrorState is what one request knows of one mirror.
type mirrorState struct {
	host     *host
	target   target // of its redirects
	failures int    // since it last made progress
	excluded bool   // for the rest of the request
	last     *fault
	fresh    int64 // bytes since its last failure
	served   int64
	single   bool // more than one connection does not work with it
	whole    bool // ranges do not work with it
	later    bool // others are asked before it
}

const (
	mostFailures = 5
	minProgress  = 4 << 10
	// stallWeight is how many failures a stall stands for: it took its time already.
	stallWeight = 3
	// mostPatience is the longest Retry-After that is waited for; less when another mirror can be asked.
	mostPatience   = 2 * time.Minute
	shortPatience  = 10 * time.Second
	restIsTooLong  = "asks to be left alone for %s"
	outOfAllOthers = "no configured host may be asked for it: see the capabilities in hosts.toml"
)

// try calls do with one mirror after another until do returns no fault. It returns an Error when no mirror is left, and
// the cause of ctx's end when the caller has gone.
func (m *mirrorSet) try(ctx context.Context, do func(*mirrorState) *fault) error {
	for {
		s := m.pick()
		if s == nil {
			return m.failure()
		}
		if err := sleep(ctx, m.clock, s.host.rested().Sub(m.clock.Now())); err != nil {
			return err
		}
		f := do(s)
		if err := ended(ctx); err != nil {
			return err
		}
		if f == nil {
			s.host.reached()
			return nil
		}
		if err := sleep(ctx, m.clock, m.noteFault(s, f)); err != nil {
			return err
		}
	}
}

// pick returns the mirror to ask next: the one that was asked last while it is eligible, else the first in order. A
// mirror that could not be reached lately comes after the others.
func (m *mirrorSet) pick() *mirrorState {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked == nil || !m.asked.eligible() || m.asked.later {
		m.asked = m.choose(nil)
		if m.asked != nil {
			m.asked.host.claim()
		}
	}
	return m.asked
}

func (m *mirrorSet) choose(not *mirrorState) *mirrorState {
	var last *mirrorState
	for _, s := range m.states {
		if s == not || !s.eligible() {
			continue
		}
		if !s.later && !s.host.isDown() {
			return s
		}
		if last == nil {
			last = s
		}
	}
	return last
}

func (s *mirrorState) eligible() bool { return !s.excluded && s.failures < mostFailures }

// noteFault records a fault of a mirror and returns how long to wait before the next request.
func (m *mirrorSet) noteFault(s *mirrorState, f *fault) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.last, s.fresh = f, 0
	next := m.choose(s)
	other, patience := next != nil, mostPatience
	if other && !next.host.isDown() {
		patience = shortPatience
	}
	if f.dead && other {
		s.host.setDown(f.lost)
	}
	switch {
	case f.unfit && !s.whole: // all of it, from the start, may be had all the same
		s.sendAll(other && f.status != 0 && f.status != http.StatusRequestedRangeNotSatisfiable)
		return 0
	case !f.again:
		s.excluded = true
		return 0
	case f.after > patience:
		f.text += "; " + fmt.Sprintf(restIsTooLong, f.after.Round(time.Second))
		s.excluded = true
		return 0
	case f.dead && other:
		s.failures = mostFailures
		return 0
	case f.late && other: // it may have it by the time that the others were asked
		s.failures += stallWeight
		s.later = true
		return 0
	case f.elapsed:
		s.failures += stallWeight
	default:
		s.failures++
	}
	if !s.eligible() && f.ranged && f.status >= 500 && !s.whole { // some servers break over a range
		s.sendAll(other)
		s.failures = mostFailures - 1
	}
	if !s.eligible() {
		return 0
	}
	if f.after > 0 {
		s.host.rest(m.clock.Now().Add(f.after))
		return f.after
	}
	return backoff(s.failures)
}

// sendAll makes later requests to the mirror ask for the whole blob. With later it is asked after the other mirrors,
// which can go on at the byte where it stopped.
func (s *mirrorState) sendAll(later bool) {
	s.whole, s.single, s.later = true, true, later
}

// progress records that a mirror delivered bytes.
func (m *mirrorSet) progress(s *mirrorState, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.served += int64(n)
	if s.fresh += int64(n); s.fresh >= minProgress {
		s.failures = 0
	}
}

// failure returns the error of all mirrors together. Its kind is that of the last registry, which is normally the one
// that the reference names; when that registry does not have the content, the kind of a host after it counts.
func (m *mirrorSet) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &Error{Kind: errdefs.ErrUnknown, Op: m.op, Text: outOfAllOthers}
	var said []string
	for _, s := range m.inOrder() {
		if s.last == nil {
			continue
		}
		said = append(said, s.host.name+": "+s.last.text)
		if !s.host.foreign || e.Kind == errdefs.ErrNotFound {
			e.Kind = s.last.kind
		}
	}
	if len(said) > 0 {
		e.Text = scrub(strings.Join(said, "; "), m.secrets)
	}
	return e
}

// current is the mirror that the reader's own connection uses, nil when more connections to it are of no use.
func (m *mirrorSet) current() *mirrorState {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked == nil || !m.asked.eligible() || m.asked.single {
		return nil
	}
	return m.asked
}

// last is the mirror that was asked last, nil before the first request.
func (m *mirrorSet) last() *mirrorState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

// oneConnection records that a mirror does not serve more than one connection well.
func (m *mirrorSet) oneConnection(s *mirrorState, f *fault) {
	if f != nil && f.elapsed {
		m.noteFault(s, f)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.single = true
}

// mustSendAll reports whether the mirror cannot serve ranges.
func (m *mirrorSet) mustSendAll(s *mirrorState) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.whole
}

// inOrder lists the mirrors as they are configured.
func (m *mirrorSet) inOrder() []*mirrorState {
	return slices.SortedFunc(slices.Values(m.states), func(a, b *mirrorState) int { return a.host.place - b.host.place })
}

// servers returns the ids of the mirrors that delivered bytes, and of all mirrors, both in order.
func (m *mirrorSet) servers() (served, all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.inOrder() {
		all = append(all, s.host.id)
		if s.served > 0 {
			served = append(served, s.host.id)
		}
	}
	return served, all
}

// mirrorSet gathers the hosts that may be asked for op. Hosts that have served other content than the digest promises
// are left out, and those suspected of it come last.
func (r *Repository) mirrorSet(
	op string, caps docker.HostCapabilities, hosts []*host, mismatched, suspected []string,
) *mirrorSet {
	out := &mirrorSet{op: op, clock: r.client.options.clock, secrets: r.secrets}
	var last []*mirrorState
	for _, h := range hosts {
		s := &mirrorState{host: h}
		switch {
		case !h.caps.Has(caps):
			continue
		case slices.Contains(mismatched, h.id):
			s.excluded, s.last = true, &fault{kind: errdefs.ErrDataLoss, text: "what it serves is not what the digest promises"}
		case slices.Contains(suspected, h.id):
			last = append(last, s)
			continue
		}
		out.states = append(out.states, s)
	}
	out.states = append(out.states, last...)
	return out
}
