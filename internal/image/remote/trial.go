package remote

import (
	"sync"
	"time"
)

// trial finds out whether more connections bring more bytes. Where they share one full link they bring none, and only take
// memory. One blob tries for all, and what it finds holds for a while: that they help, for as long as they are used and a little more.
type trial struct {
	mu      sync.Mutex // guards what follows
	seen    []sample   // what all blobs had received, of the last second or so
	by      *Blob      // who tries; nil when nobody does
	settled sample     // when its connections had come up to speed
	before  float64    // bytes a second until it began
	verdict verdict
	until   time.Time // the verdict holds
	pause   time.Duration
}

type sample struct {
	at    time.Time
	bytes int64
}

// rate is in bytes a second.
func (s sample) rate(later sample) float64 {
	return float64(later.bytes-s.bytes) / later.at.Sub(s.at).Seconds()
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

// allows says whether b, whose reader starves, may fetch ahead. It is asked again and again, with what all blobs have
// received so far. Half the length of a trial goes before it, to know what was, and half for getting up to speed.
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
	if t.settled.rate(now) > gain*t.before {
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
