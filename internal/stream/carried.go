package stream

import (
	"fmt"
	"sync"

	"berth/internal/limit"
)

// carried counts the connections of all port-forwards, as the two streams of each. A pod may have as many as are free
// besides: so whoever takes all leaves something for the next. The zero value is ready.
type carried struct {
	mu   sync.Mutex // guards what follows
	used int64
	of   map[string]int64 // by pod
}

// take counts n streams of a pod, or says why there may not be so many.
func (c *carried) take(pod string, n int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := limit.AllForwardedConnections
	if has := c.of[pod]; has+n > 2*all.Limit-c.used-n {
		return fmt.Errorf("pod %s has %d of the %d connections in use: %w", pod, has/2, c.used/2, all.Exceeded())
	}
	if c.of == nil {
		c.of = map[string]int64{}
	}
	c.used += n
	c.of[pod] += n
	return nil
}

// give says that n streams of a pod have ended.
func (c *carried) give(pod string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used -= n
	if c.of[pod] -= n; c.of[pod] <= 0 {
		delete(c.of, pod)
	}
}

// budget is the limit with what is used of it.
func (c *carried) budget() limit.Budget {
	c.mu.Lock()
	defer c.mu.Unlock()
	return limit.AllForwardedConnections.With((c.used + 1) / 2)
}

// carrying counts the streams of one pod. The zero value does not count: commands have few.
type carrying struct {
	all *carried
	pod string
}

func (c carrying) take(n int64) error {
	if c.all == nil {
		return nil
	}
	return c.all.take(c.pod, n)
}

func (c carrying) give(n int) {
	if c.all != nil {
		c.all.give(c.pod, int64(n))
	}
}
