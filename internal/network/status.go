package network

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// NotReady is the reason that kubelets know for a network that is not ready.
const NotReady = "NetworkPluginNotReady"

const (
	statusTimeout = 10 * time.Second // how long plugins may take to answer STATUS
	statusFresh   = 2 * time.Second  // how old an answer may be before it is asked for again
)

// Status says whether pods can be attached, and if not, why and what to do.
type Status struct {
	Ready           bool
	Reason, Message string   // both empty when ready
	Network, File   string   // the network in force and where it is configured, "" when there is none
	Plugins         []string // of that network, in order
	Since           time.Time
}

// snapshot is what one look at the configuration found.
type snapshot struct {
	status Status
	conf   *netconf // nil when it is not usable
}

// Status answers at once from what is known. Where plugins can be asked for theirs (CNI 1.1), and their answer is not
// fresh, it also has them asked, for the next caller.
func (n *Network) Status() Status {
	s := n.current.Load()
	if s.conf == nil || !s.conf.atLeast("1.1.0") {
		return s.status
	}
	return n.status.apply(s)
}

// reload looks at the configuration. A look that finds a usable one is believed at once. One that does not is believed
// if it is final, or if there was none before: a file may be seen half written. It returns what else must be watched,
// and whether the look was put off.
func (n *Network) reload(final bool) (beside []string, putOff bool) {
	beside = sources(n.now().ConfigDir)
	conf, err := load(n.now().ConfigDir, n.now().PluginDirs)
	old := n.current.Load()
	if err != nil && !final && old != nil && old.conf != nil {
		return beside, true
	}
	s := &snapshot{conf: conf, status: describe(conf, err)}
	if old != nil && same(old, s) {
		return beside, false
	}
	n.current.Store(s)
	if conf != nil {
		n.cfg.Logger.Info("network configured", "network", conf.Name, "file", conf.File, "plugins", s.status.Plugins)
		if conf.atLeast("1.1.0") {
			n.status.ask(conf)
		}
	} else {
		n.cfg.Logger.Warn("no usable network", "error", err)
	}
	return beside, false
}

func describe(conf *netconf, err error) Status {
	if err != nil {
		message := err.Error()
		if errors.Is(err, errNoConfig) {
			message += "; pods without host networking wait until a network plugin or the administrator puts one there"
		}
		return Status{Reason: NotReady, Message: message, Since: time.Now()}
	}
	s := Status{Ready: true, Network: conf.Name, File: conf.File, Since: time.Now()}
	for _, p := range conf.Plugins {
		s.Plugins = append(s.Plugins, p.Type)
	}
	return s
}

// same says whether two looks found the same.
func same(a, b *snapshot) bool {
	if a.conf == nil || b.conf == nil {
		return a.conf == b.conf && a.status.Message == b.status.Message
	}
	return a.conf.equal(b.conf)
}

// refresher asks plugins for their STATUS, one call at a time, when somebody wants to know.
type refresher struct {
	n      *Network
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

func (r *refresher) init(n *Network) {
	r.n = n
	r.ctx, r.cancel = context.WithCancel(context.Background())
}

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
		st.Message = fmt.Sprintf("network %q (%s) is configured; its plugins have not answered STATUS yet", s.conf.Name,
			s.conf.File)
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
		r.record(&answer{conf: conf, err: r.n.askStatus(ctx, conf), at: time.Now()})
	})
}

// record keeps an answer, and the time since which it has been so.
func (r *refresher) record(a *answer) {
	old := r.last.Load()
	a.since = a.at
	if old != nil && old.conf == a.conf && fmt.Sprint(old.err) == fmt.Sprint(a.err) {
		a.since = old.since
	} else if a.err != nil && r.ctx.Err() == nil {
		r.n.cfg.Logger.Warn("the network's plugins say that they are not ready", "network", a.conf.Name, "error", a.err)
	}
	r.last.Store(a)
}

func (n *Network) askStatus(ctx context.Context, conf *netconf) error {
	c := &call{n: n, name: "cni-status", verb: "STATUS", conf: conf}
	for _, p := range conf.Plugins {
		if _, err := c.one(ctx, p, nil); err != nil {
			return err
		}
	}
	return nil
}
