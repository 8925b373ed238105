package network

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	statusTimeout = 10 * time.Second // how long plugins may take to answer STATUS
	statusFresh   = 2 * time.Second  // how old an answer may be before it is asked for again

	// firstAnswerWait is how long the status waits for an answer where none is known, from when it was asked for. It is
	// as long as a first status waits for the trials of the runtimes, and a fraction of the time after which a kubelet
	// asks for the next time.
	firstAnswerWait = 2 * time.Second
)

// refresher asks plugins for their STATUS, one call at a time, when the status is asked for.
type refresher struct {
	call func(ctx context.Context, conf *netconf) error // asks the plugins of a configuration
	log  *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	calls  sync.WaitGroup
	last   atomic.Pointer[answer]

	mu     sync.Mutex // guards asking
	asking *question  // nil when no call is under way
}

// question is a call that is under way.
type question struct {
	conf   *netconf
	at     time.Time
	cancel context.CancelFunc
	ended  chan struct{} // closed when its answer, if it has one, is the last
}

// answer is what the plugins of a configuration said last.
type answer struct {
	conf      *netconf
	err       error
	at, since time.Time
}

func (r *refresher) open() { r.ctx, r.cancel = context.WithCancel(context.Background()) }

func (r *refresher) close() {
	r.mu.Lock()
	r.cancel() // from here on ask begins no call
	r.mu.Unlock()
	r.calls.Wait()
}

// apply overlays what the plugins said on a usable configuration. Where nothing is known of its network it waits a
// moment for the first answer: a node must not become NotReady because the daemon was started again.
func (r *refresher) apply(s *snapshot) Status {
	a := r.last.Load()
	if !a.holds(s.conf) {
		r.ask(s.conf).wait()
		a = r.last.Load()
	}
	st := s.status
	if !a.holds(s.conf) {
		st.Ready, st.Reason = false, NotReady
		st.Message = fmt.Sprintf("network %q (%s) is configured; its plugins have not answered STATUS yet",
			s.conf.Name, s.conf.File)
		return st
	}
	if a.conf != s.conf || time.Since(a.at) > statusFresh {
		r.ask(s.conf)
	}
	st.Since = a.since
	if a.err != nil {
		st.Ready, st.Reason, st.Message = false, NotReady, a.err.Error()
	}
	return st
}

// holds reports whether an answer says something of a configuration: it is of that one, or it is a good one of the same
// network as it was configured before.
func (a *answer) holds(conf *netconf) bool {
	return a != nil && (a.conf == conf || a.err == nil && a.conf.Name == conf.Name)
}

// ask starts a STATUS unless one is under way for the configuration. One for another configuration is ended: nobody
// waits for its answer any more, and it may hang.
func (r *refresher) ask(conf *netconf) *question {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.asking
	if before != nil && before.conf == conf {
		return before
	}
	ctx, cancel := context.WithTimeout(r.ctx, statusTimeout)
	q := &question{conf: conf, at: time.Now(), cancel: cancel, ended: make(chan struct{})}
	if r.ctx.Err() != nil {
		cancel()
		close(q.ended)
		return q
	}
	if before != nil {
		before.cancel()
	}
	r.asking = q
	r.calls.Go(func() {
		defer close(q.ended)
		defer cancel()
		if before != nil {
			<-before.ended // one at a time
		}
		r.record(q, &answer{conf: conf, err: r.call(ctx, conf), at: time.Now()})
	})
	return q
}

// wait returns when the question is answered, or was asked firstAnswerWait ago.
func (q *question) wait() {
	timer := time.NewTimer(time.Until(q.at.Add(firstAnswerWait)))
	defer timer.Stop()
	select {
	case <-q.ended:
	case <-timer.C:
	}
}

// record keeps an answer, and the time since which it has been so, unless another configuration is asked about by now.
func (r *refresher) record(q *question, a *answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asking != q {
		return
	}
	r.asking = nil
	old := r.last.Load()
	a.since = a.at
	if old.holds(a.conf) && fmt.Sprint(old.err) == fmt.Sprint(a.err) {
		a.since = old.since
	} else if a.err != nil && r.ctx.Err() == nil {
		r.log.Warn("the network's plugins say that they are not ready", "network", a.conf.Name, "error", a.err)
	}
	r.last.Store(a)
}
