package remote

import (
	"sync"
	"time"
)

// parallelismProbes keeps a probe for each host that blobs are fetched from: more connections may help with one host
// and not with another.
type parallelismProbes struct {
	mu     sync.Mutex // guards what follows, and the users of each
	byHost map[string]*parallelismProbe
}

// enter returns the probe of a host for a blob. The blob leaves it when it goes on at another host.
func (p *parallelismProbes) enter(host string) *parallelismProbe {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byHost == nil {
		p.byHost = map[string]*parallelismProbe{}
	}
	one := p.byHost[host]
	if one == nil {
		p.forget()
		one = &parallelismProbe{host: host}
		p.byHost[host] = one
	}
	one.users++
	return one
}

// mostProbes is how many hosts are remembered of which nothing is being fetched.
const mostProbes = 64

func (p *parallelismProbes) forget() {
	for host, one := range p.byHost {
		if len(p.byHost) < mostProbes {
			return
		}
		if one.users == 0 {
			delete(p.byHost, host)
		}
	}
}

func (p *parallelismProbes) leave(one *parallelismProbe, b *Blob) {
	one.leave(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	one.users--
}

// parallelismProbe finds out whether more connections to a host bring more bytes. Over a link that is full already they
// bring none: they take memory, and bytes from other hosts. One blob probes for all blobs of the host. Its result holds
// for a while; that more connections help holds for as long as they are used, and a little longer.
type parallelismProbe struct {
	host  string
	users int // guarded by the parallelismProbes

	mu      sync.Mutex // guards what follows
	bytes   int64      // that the host has sent
	seen    []sample   // of the last second or so
	by      *Blob      // the blob that probes, nil when none does
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

// pays reports whether the host brings much more than before, and most of that was not taken from others.
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
func (p *parallelismProbe) receive(n int, at time.Time, all int64) sample {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += int64(n)
	return sample{at, p.bytes, all}
}

// allows reports whether b, whose reader starves, may fetch ahead. It is called for each gauge window, with what the
// host has sent so far. The probe is preceded by half its length to measure the rate without it, and by another half to
// get up to speed.
func (p *parallelismProbe) allows(b *Blob, now sample, length time.Duration) bool {
	if length <= 0 {
		return true // tests switch probes off
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(now, length/2)
	if p.by == nil && p.verdict != unknown && now.at.After(p.until) {
		p.verdict = unknown
	}
	switch {
	case p.by == b:
		return p.judge(now, length)
	case p.verdict == helps && b.ahead.wanted:
		p.until = now.at.Add(helpsFor) // it is in use: what was without it can't be known any more
	case p.verdict == unknown && p.by == nil && now.at.Sub(p.seen[0].at) >= length/2:
		p.by, p.before, p.settled = b, p.seen[0].rate(now), sample{}
		p.until = now.at.Add(length / 2) // to get up to speed
		return true
	}
	return p.verdict == helps
}

// note keeps the samples of the last span, and one before them. Those from before a gap say nothing.
func (p *parallelismProbe) note(now sample, span time.Duration) {
	if n := len(p.seen); n > 0 && now.at.Sub(p.seen[n-1].at) > span {
		p.seen = nil
	}
	p.seen = append(p.seen, now)
	for len(p.seen) > 2 && now.at.Sub(p.seen[1].at) >= span {
		p.seen = p.seen[1:]
	}
}

// judge goes on with the probe, or ends it with a verdict.
func (p *parallelismProbe) judge(now sample, length time.Duration) bool {
	if p.settled.at.IsZero() {
		if now.at.After(p.until) {
			p.settled = now
		}
		return true
	}
	if now.at.Sub(p.settled.at) < length {
		return true
	}
	p.by = nil
	if p.settled.rate(now).pays(p.before) {
		p.verdict, p.until, p.pause = helps, now.at.Add(helpsFor), 0
		return true
	}
	p.pause = max(firstPause, min(2*p.pause, longestPause))
	p.verdict, p.until = useless, now.at.Add(p.pause)
	return false
}

// leave ends the probe of a blob that is read no more.
func (p *parallelismProbe) leave(b *Blob) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by == b {
		p.by = nil
	}
}
