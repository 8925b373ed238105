package remote

import (
	"sync"
	"time"
)

// trials has a trial for each host that blobs are fetched from: what helps with one may not with another, and no host
// decides for others.
type trials struct {
	mu     sync.Mutex // guards what follows, and the users of each
	byHost map[string]*trial
}

// enter returns the trial of a host for a blob, which leaves it when it goes on elsewhere.
func (t *trials) enter(host string) *trial {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byHost == nil {
		t.byHost = map[string]*trial{}
	}
	one := t.byHost[host]
	if one == nil {
		t.forget()
		one = &trial{host: host}
		t.byHost[host] = one
	}
	one.users++
	return one
}

// mostTrials is how many hosts are remembered of which nothing is being fetched.
const mostTrials = 64

func (t *trials) forget() {
	for host, one := range t.byHost {
		if len(t.byHost) < mostTrials {
			return
		}
		if one.users == 0 {
			delete(t.byHost, host)
		}
	}
}

func (t *trials) leave(one *trial, b *Blob) {
	one.leave(b)
	t.mu.Lock()
	defer t.mu.Unlock()
	one.users--
}

// trial finds out whether more connections to a host bring more bytes. Where they share one full link they bring none,
// and only take memory, or take from what other hosts send. One blob tries for all, and what it finds holds for a
// while: that they help, for as long as they are used and a little more.
type trial struct {
	host  string
	users int // guarded by the trials

	mu      sync.Mutex // guards what follows
	bytes   int64      // that the host has sent
	seen    []sample   // of the last second or so
	by      *Blob      // who tries; nil when nobody does
	settled sample     // when its connections had come up to speed
	before  rates      // until it began
	verdict verdict
	until   time.Time // the verdict holds
	pause   time.Duration
}

type sample struct {
	at    time.Time
	bytes int64 // from the host
	all   int64 // from all hosts
}

// rates are bytes a second.
type rates struct{ own, all float64 }

func (s sample) rate(later sample) rates {
	span := later.at.Sub(s.at).Seconds()
	return rates{float64(later.bytes-s.bytes) / span, float64(later.all-s.all) / span}
}

// pays says whether the host brings much more than before, and most of that was not taken from others.
func (r rates) pays(before rates) bool {
	return r.own > gain*before.own && r.all-before.all > (r.own-before.own)/2
}

type verdict int

const (
	unknown verdict = iota
	helps
	useless
)

const (
	gain         = 1.25 // as many times more must more connections bring
	helpsFor     = time.Minute
	firstPause   = 10 * time.Second
	longestPause = 5 * time.Minute
)

// receive adds up what the host has sent.
func (t *trial) receive(n int, at time.Time, all int64) sample {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes += int64(n)
	return sample{at, t.bytes, all}
}

// allows says whether b, whose reader starves, may fetch ahead. It is asked again and again, with what the host
// has sent so far. Half the length of a trial goes before it, to know what was, and half for getting up to speed.
func (t *trial) allows(b *Blob, now sample, length time.Duration) bool {
	if length <= 0 {
		return true // no trials: for tests
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.note(now, length/2)
	if t.by == nil && t.verdict != unknown && now.at.After(t.until) {
		t.verdict = unknown
	}
	switch {
	case t.by == b:
		return t.judge(now, length)
	case t.verdict == helps && b.ahead.wanted:
		t.until = now.at.Add(helpsFor) // it is in use: what was without it can't be known any more
	case t.verdict == unknown && t.by == nil && now.at.Sub(t.seen[0].at) >= length/2:
		t.by, t.before, t.settled = b, t.seen[0].rate(now), sample{}
		t.until = now.at.Add(length / 2) // to get up to speed
		return true
	}
	return t.verdict == helps
}

// note keeps the samples of the last span, and one before them. Those from before a gap say nothing.
func (t *trial) note(now sample, span time.Duration) {
	if n := len(t.seen); n > 0 && now.at.Sub(t.seen[n-1].at) > span {
		t.seen = nil
	}
	t.seen = append(t.seen, now)
	for len(t.seen) > 2 && now.at.Sub(t.seen[1].at) >= span {
		t.seen = t.seen[1:]
	}
}

// judge goes on with the trial, or ends it.
func (t *trial) judge(now sample, length time.Duration) bool {
	if t.settled.at.IsZero() {
		if now.at.After(t.until) {
			t.settled = now
		}
		return true
	}
	if now.at.Sub(t.settled.at) < length {
		return true
	}
	t.by = nil
	if t.settled.rate(now).pays(t.before) {
		t.verdict, t.until, t.pause = helps, now.at.Add(helpsFor), 0
		return true
	}
	t.pause = max(firstPause, min(2*t.pause, longestPause))
	t.verdict, t.until = useless, now.at.Add(t.pause)
	return false
}

// leave ends the trial of a blob that is read no more.
func (t *trial) leave(b *Blob) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == b {
		t.by = nil
	}
}
