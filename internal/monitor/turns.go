package monitor

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Clients may ask for very many execs of a container at once, and a runtime is run for each, outside of what limits the
// container. So few run at the same time: on a busy node they would not get on faster, and those of other pods would
// wait among all of them.
const (
	execTurns = 4           // runtimes that start execs of a container at the same time
	turnTime  = time.Second // how long a turn lasts at most: a runtime that hangs keeps no others from their turn
)

// turns are taken in the order in which they are asked for.
type turns chan struct{}

func newTurns(n int) turns { return make(turns, n) }

// take waits for a turn, which ends with the first call of done, or after turnTime.
func (t turns) take(ctx context.Context) (done func(), err error) {
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for %d other execs of the container, which the runtime is starting: %w",
			cap(t), context.Cause(ctx))
	}
	end := sync.OnceFunc(func() { <-t })
	late := time.AfterFunc(turnTime, end)
	return func() {
		late.Stop()
		end()
	}, nil
}
