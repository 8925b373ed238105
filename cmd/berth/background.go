package main

import (
	"context"
	"sync"
)

// background is what the daemon does beside requests, until it ends.
type background struct {
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newBackground() *background {
	b := &background{}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// run starts fn, whose context ends when the daemon does.
func (b *background) run(fn func(ctx context.Context)) { b.running.Go(func() { fn(b.ctx) }) }

// end ends what runs and waits for it.
func (b *background) end() {
	b.cancel()
	b.running.Wait()
}
