package remote

import (
	"sync"
	"time"
)

// lostFor is how long a host to which no connection could be made is asked after the others.
const lostFor = time.Minute

// lostHosts remembers over all pulls which hosts could not be reached. A mirror behind a dead route costs its dial
// timeout, and without this each pull would pay for it. What else goes wrong with a host is not remembered here: that
// may be due to the registry behind it, and would let one image turn a mirror off for all others.
type lostHosts struct {
	clock clock

	mu    sync.Mutex // guards what follows
	until map[string]time.Time
}

// has reports whether others should be asked before the host. A nil lostHosts knows of none.
func (l *lostHosts) has(origin string) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock.Now().Before(l.until[origin])
}

// add notes that no connection to a host could be made. It forgets what has long been over, so that names that no pull
// uses any more do not add up.
func (l *lostHosts) add(origin string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	for other, until := range l.until {
		if now.Sub(until) > lostFor {
			delete(l.until, other)
		}
	}
	l.until[origin] = now.Add(lostFor)
}

// claim says that a host is about to be asked. When its time is over, the first who asks finds out for all: to the
// others it is lost for another minute, unless remove says that it is there.
func (l *lostHosts) claim(origin string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if until, ok := l.until[origin]; ok && !l.clock.Now().Before(until) {
		l.until[origin] = l.clock.Now().Add(lostFor)
	}
}

// remove notes that a host is there.
func (l *lostHosts) remove(origin string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.until, origin)
}
