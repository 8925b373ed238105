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

	mu    sync.Mutex // guards what follows
	open  map[string]ticket
	order []string // the oldest first; those that were used are among them
}

type ticket struct {
	kind    string
	req     any
	expires time.Time
}

func (t *tickets) time() time.Time {
	if t.now != nil {
		return t.now()
	}
	return time.Now()
}

// issue makes a token for one use.
func (t *tickets) issue(kind string, req any) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.time()
	for len(t.order) > 0 {
		oldest, unused := t.open[t.order[0]]
		if unused && now.Before(oldest.expires) {
			break
		}
		delete(t.open, t.order[0])
		t.order = t.order[1:]
	}
	if err := t.waiting.Check(int64(len(t.open) + 1)); err != nil {
		return "", err
	}
	if t.open == nil {
		t.open = map[string]ticket{}
	}
	token := rand.Text()
	t.open[token] = ticket{kind, req, now.Add(ticketTime)}
	t.order = append(t.order, token)
	return token, nil
}

// use returns what a token was issued for, once.
func (t *tickets) use(kind, token string) (req any, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, ok := t.open[token]
	if !ok || found.kind != kind {
		return nil, false
	}
	delete(t.open, token)
	if len(t.open) == 0 {
		t.order = nil
	}
	return found.req, t.time().Before(found.expires)
}

// used is the budget of tokens, as of the last that was issued.
func (t *tickets) used() limit.Budget {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting.With(int64(len(t.open)))
}

// Budgets are the limits that all clients share, with what is used of them.
func (s *Server) Budgets() []limit.Budget {
	return []limit.Budget{s.tickets.used()}
}
