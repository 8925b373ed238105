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
)

// refresher asks plugins for their STATUS, one call at a time, when the status is asked for.
type refresher struct {
	call func(ctx context.Context, conf *netconf) error // asks the plugins of a configuration
	log  *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	asking atomic.Bool
	calls  sync.WaitGroup
	last   atomic.Pointer[answer]
}

// answer is what the plugins of a configuration said last.
type answer struct {
	conf      *netconf
	err       error
	at, since time.Time
}

func (r *refresher) open() { r.ctx, r.cancel = context.WithCancel(context.Background()) }

func (r *refresher) close() {
	r.cancel()
	r.calls.Wait()
}

// apply overlays what the plugins said on a usable configuration.
func (r *refresher) apply(s *snapshot) Status {
	st, a := s.status, r.last.Load()
	if a == nil || a.conf != s.conf {
		r.ask(s.conf)
		st.Ready, st.Reason = false, NotReady
		st.Message = fmt.Sprintf("network %q (%s) is configured; its plugins have not answered STATUS yet",
			s.conf.Name, s.conf.File)
		return st
	}
	if time.Since(a.at) > statusFresh {
		r.ask(s.conf)
	}
	st.Since = a.since
	if a.err != nil {
		st.Ready, st.Reason, st.Message = false, NotReady, a.err.Error()
	}
	return st
}

// ask starts a STATUS unless one is under way.
func (r *refresher) ask(conf *netconf) {
	if r.ctx.Err() != nil || !r.asking.CompareAndSwap(false, true) {
		return
	}
	r.calls.Go(func() {
		defer r.asking.Store(false)
		ctx, cancel := context.WithTimeout(r.ctx, statusTimeout)
		defer cancel()
		r.record(&answer{conf: conf, err: r.call(ctx, conf), at: time.Now()})
	})
}

// record keeps an answer, and the time since which it has been so.
func (r *refresher) record(a *answer) {
	old := r.last.Load()
	a.since = a.at
	if old != nil && old.conf == a.conf && fmt.Sprint(old.err) == fmt.Sprint(a.err) {
		a.since = old.since
	} else if a.err != nil && r.ctx.Err() == nil {
		r.log.Warn("the network's plugins say that they are not ready", "network", a.conf.Name, "error", a.err)
	}
	r.last.Store(a)
}
