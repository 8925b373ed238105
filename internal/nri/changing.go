package nri

import (
	"context"
	"time"

	"berth/internal/pod"
	"berth/internal/sandbox"
)

// changedAtOnce is how many containers are changed at the same time.
const changedAtOnce = 8

// changeAll makes changes to many containers, several at once and those of one container in their order, and returns
// how many containers have not all of theirs when the time is over. A change that hangs is left to end by itself.
func changeAll(
	ctx context.Context, within time.Duration, changes []pod.Change, change func(context.Context, []pod.Change),
) (left int) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	all := byContainer(changes)
	left = len(all)
	turns, done := make(chan struct{}, changedAtOnce), make(chan struct{}, len(all))
	for _, of := range all {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return left - len(done)
		}
		go func() {
			change(ctx, of)
			<-turns
			done <- struct{}{}
		}()
	}
	for left > 0 {
		select {
		case <-done:
			left--
		case <-ctx.Done():
			return left - len(done)
		}
	}
	return 0
}

// byContainer sorts changes into those of each container, in the order in which these come first.
func byContainer(changes []pod.Change) (all [][]pod.Change) {
	at := map[sandbox.ID]int{}
	for _, ch := range changes {
		i, known := at[ch.Container]
		if !known {
			i = len(all)
			at[ch.Container] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], ch)
	}
	return all
}

// changeLate makes what plugins want of others at events that were told late. It is called when nobody is kept waiting
// but its caller, who waits no longer than for a plugin that joins, and not when ctx has ended.
func (p *Plugins) changeLate(ctx context.Context, changes []pod.Change) {
	if len(changes) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		within := p.cfg.SynchronizationTimeout
		if left := changeAll(context.Background(), within, changes, p.change); left > 0 {
			p.cfg.Log.Warn("NRI: what plugins want changed at ends that they were told of late is not all done in time",
				"containers_left", left, "allowed", within)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// apply makes what plugins want done to one container.
func (p *Plugins) apply(ctx context.Context, of []pod.Change) {
	defer p.survive("a change could not be made", "container", of[0].Container)
	p.pods.Limiter.Apply(ctx, of)
}
