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

// round asks hosts for one thing, in order, until one has delivered it or none is left to ask.
type round struct {
	op      string
	clock   clock
	secrets []string

	mu    sync.Mutex // guards what follows and the seats
	seats []*seat
	now   *seat // that was asked last
}

// seat is a host's place in a round.
type seat struct {
	host     *host
	target   target // of its redirects
	failures int    // since it last made progress
	out      bool   // for the rest of the round
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
	// mostPatience is the longest Retry-After that is waited for; less when there is somebody else to ask.
	mostPatience   = 2 * time.Minute
	shortPatience  = 10 * time.Second
	restIsTooLong  = "asks to be left alone for %s"
	outOfAllOthers = "no configured host may be asked for it: see the capabilities in hosts.toml"
)

// try asks one host after another until do has no fault to tell. It returns an Error when none is left, and the cause of
// ctx's end.
func (r *round) try(ctx context.Context, do func(*seat) *fault) error {
	for {
		s := r.pick()
		if s == nil {
			return r.verdict()
		}
		if err := sleep(ctx, r.clock, s.host.rested().Sub(r.clock.Now())); err != nil {
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
		if err := sleep(ctx, r.clock, r.blame(s, f)); err != nil {
			return err
		}
	}
}

// pick chooses whom to ask: the one that was asked last as long as it may be, else the first; one that could not be
// reached lately comes behind the others.
func (r *round) pick() *seat {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now == nil || !r.now.eligible() || r.now.later {
		r.now = r.choose(nil)
		if r.now != nil {
			r.now.host.claim()
		}
	}
	return r.now
}

func (r *round) choose(not *seat) *seat {
	var last *seat
	for _, s := range r.seats {
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

func (s *seat) eligible() bool { return !s.out && s.failures < mostFailures }

// blame notes a fault and says how long to wait before the next request of the round.
func (r *round) blame(s *seat, f *fault) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.last, s.fresh = f, 0
	next := r.choose(s)
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
		s.out = true
		return 0
	case f.after > patience:
		f.text += "; " + fmt.Sprintf(restIsTooLong, f.after.Round(time.Second))
		s.out = true
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
		s.host.rest(r.clock.Now().Add(f.after))
		return f.after
	}
	return backoff(s.failures)
}

// sendAll has a host be asked for the whole blob from now on, and after the others when later is set: they go on at the
// byte.
func (s *seat) sendAll(later bool) {
	s.whole, s.single, s.later = true, true, later
}

// progress notes that a host delivered bytes.
func (r *round) progress(s *seat, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.served += int64(n)
	if s.fresh += int64(n); s.fresh >= minProgress {
		s.failures = 0
	}
}

// verdict says what all hosts said. Its kind is that of the last registry, normally the one that the reference names; when
// that one just does not have it, whoever comes behind it.
func (r *round) verdict() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &Error{Kind: errdefs.ErrUnknown, Op: r.op, Text: outOfAllOthers}
	var said []string
	for _, s := range r.inOrder() {
		if s.last == nil {
			continue
		}
		said = append(said, s.host.name+": "+s.last.text)
		if !s.host.foreign || e.Kind == errdefs.ErrNotFound {
			e.Kind = s.last.kind
		}
	}
	if len(said) > 0 {
		e.Text = scrub(strings.Join(said, "; "), r.secrets)
	}
	return e
}

// current is the host that the reader's own connection uses, nil when more connections are of no use.
func (r *round) current() *seat {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now == nil || !r.now.eligible() || r.now.single {
		return nil
	}
	return r.now
}

// last is the host that was asked last; nil before the first.
func (r *round) last() *seat {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// alone notes that a host does not take more than one connection well.
func (r *round) alone(s *seat, f *fault) {
	if f != nil && f.elapsed {
		r.blame(s, f)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.single = true
}

// mustSendAll says that a host cannot be asked for ranges.
func (r *round) mustSendAll(s *seat) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.whole
}

// inOrder lists the seats as they are configured.
func (r *round) inOrder() []*seat {
	return slices.SortedFunc(slices.Values(r.seats), func(a, b *seat) int { return a.host.place - b.host.place })
}

// servers lists who delivered bytes, by id and in order, and all who could.
func (r *round) servers() (served, all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.inOrder() {
		all = append(all, s.host.id)
		if s.served > 0 {
			served = append(served, s.host.id)
		}
	}
	return served, all
}

// round gathers the hosts that may be asked for op. Hosts that served something else for the digest d do not take part,
// and those suspected of it come last.
func (r *Repository) round(op string, caps docker.HostCapabilities, hosts []*host, liars, suspects []string) *round {
	out := &round{op: op, clock: r.client.options.clock, secrets: r.secrets}
	var doubtful []*seat
	for _, h := range hosts {
		s := &seat{host: h}
		switch {
		case !h.caps.Has(caps):
			continue
		case slices.Contains(liars, h.id):
			s.out, s.last = true, &fault{kind: errdefs.ErrDataLoss, text: "what it serves is not what the digest promises"}
		case slices.Contains(suspects, h.id):
			doubtful = append(doubtful, s)
			continue
		}
		out.seats = append(out.seats, s)
	}
	out.seats = append(out.seats, doubtful...)
	return out
}
