package op

import (
	"context"
	"sync"
	"time"
)

// InTurn runs fn once there is a free slot, which it gives back when fn ends or has taken longer than most, so that one
// that hangs does not keep the others from their turn. After a reboot something is to be done for every pod: plugins
// that run for all of them at once would use up each other's time. fn is not run where ctx ends before a slot is free.
func InTurn(ctx context.Context, slots chan struct{}, most time.Duration, fn func(context.Context) error) error {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	free := sync.OnceFunc(func() { <-slots })
	defer free()
	defer time.AfterFunc(most, free).Stop()
	return fn(ctx)
}
