package stream

import (
	"crypto/rand"
	"sync"
	"time"

	"berth/internal/limit"
)

// ticketTime is how long a token is good for.
const ticketTime = time.Minute

// tickets are what connections may be used for, by token. The zero value is ready, and has no limit.
type tickets struct {
	now     func() time.Time // time.Now, unless a test says otherwise
	waiting limit.Budget     // tokens that are not used

	sessions limit.Budget // sessions that have not ended, with those of the tokens
	ofTarget limit.Budget // the same, of one container or pod

	mu    sync.Mutex // guards what follows
	open  map[string]ticket
	order []string       // the oldest first; those that were used are among them
	begun int            // sessions
	load  map[string]int // by target: sessions that have not ended
}

type ticket struct {
	kind    string
	target  string // the container or pod
	req     any
	expires time.Time
}

func (t *tickets) time() time.Time {
	if t.now != nil {
		return t.now()
	}
	return time.Now()
}

// issue makes a token for one use, which is a session of target's.
func (t *tickets) issue(kind, target string, req any) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.time()
	for len(t.order) > 0 {
		oldest, unused := t.open[t.order[0]]
		if unused && now.Before(oldest.expires) {
			break
		}
		if unused {
			delete(t.open, t.order[0])
			t.unload(oldest.target)
		}
		t.order = t.order[1:]
	}
	for _, err := range []error{
		t.ofTarget.Check(int64(t.load[target] + 1)), t.waiting.Check(int64(len(t.open) + 1)),
		t.sessions.Check(int64(len(t.open) + t.begun + 1)),
	} {
		if err != nil {
			return "", err
		}
	}
	if t.open == nil {
		t.open, t.load = map[string]ticket{}, map[string]int{}
	}
	t.load[target]++
	token := rand.Text()
	t.open[token] = ticket{kind, target, req, now.Add(ticketTime)}
	t.order = append(t.order, token)
	return token, nil
}

// use returns what a token was issued for, once. The session ends with end.
func (t *tickets) use(kind, token string) (found ticket, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, ok = t.open[token]
	if !ok || found.kind != kind {
		return ticket{}, false
	}
	delete(t.open, token)
	if len(t.open) == 0 {
		t.order = nil
	}
	if !t.time().Before(found.expires) {
		t.unload(found.target)
		return ticket{}, false
	}
	t.begun++
	return found, true
}

// end makes room for another session.
func (t *tickets) end(target string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun--
	t.unload(target)
}

// unload takes one session off a target's. t.mu is held.
func (t *tickets) unload(target string) {
	if t.load[target]--; t.load[target] == 0 {
		delete(t.load, target)
	}
}

// used are the budgets of tokens and sessions, as of the last token that was issued.
func (t *tickets) used() []limit.Budget {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := int64(len(t.open))
	return []limit.Budget{t.waiting.With(n), t.sessions.With(n + int64(t.begun))}
}

// Budgets are the limits that all clients share, with what is used of them.
func (s *Server) Budgets() []limit.Budget {
	return append(s.tickets.used(), s.carried.budget(), limit.SessionInputs.With(s.backlogs.used.Load()))
}
