package stream

import (
	"fmt"

	"berth/internal/limit"
)

// carried counts the connections of all port-forwards, as the two streams of each, by pod. The zero value is ready.
type carried struct{ streams limit.Shares[string] }

// take counts n streams of a pod, or says why there may not be so many.
func (c *carried) take(pod string, n int64) error {
	all := limit.AllForwardedConnections
	if has, used, ok := c.streams.Take(pod, n, 2*all.Limit); !ok {
		return fmt.Errorf("pod %s has %d of the %d connections in use: %w", pod, has/2, used/2, all.Exceeded())
	}
	return nil
}

// give says that n streams of a pod have ended.
func (c *carried) give(pod string, n int64) { c.streams.Give(pod, n) }

// budget is the limit with what is used of it.
func (c *carried) budget() limit.Budget {
	return limit.AllForwardedConnections.With((c.streams.Used() + 1) / 2)
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
