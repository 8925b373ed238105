package nri

import (
	"context"
	"fmt"
	"sync"
	"time"

	"berth/internal/pod"
	"berth/internal/sandbox"
)

// changedAtOnce is how many containers are changed at the same time.
const changedAtOnce = 8

// changing makes changes that plugins want of many containers, one at a time of each container.
type changing struct {
	mu       sync.Mutex // guards underWay
	underWay map[sandbox.ID]chan struct{}
}

// all makes changes to several containers at once, those of one container in their order. It returns how many
// containers have not all of theirs when the time is over, and which have none because an earlier change of them,
// which was under way before, has not ended. A change that hangs is left to end by itself.
func (c *changing) all(
	ctx context.Context, within time.Duration, changes []pod.Change, change func(context.Context, []pod.Change),
) (left int, stuck []sandbox.ID) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	all := byContainer(changes)
	turns := make(chan struct{}, changedAtOnce)
	before, done := make([]<-chan struct{}, len(all)), make([]chan struct{}, len(all))
	for i, of := range all {
		before[i], done[i] = c.earlier(of[0].Container), make(chan struct{})
		go func() {
			if !c.begin(ctx, of[0].Container) {
				return
			}
			defer c.end(of[0].Container)
			select {
			case turns <- struct{}{}:
			case <-ctx.Done():
				return
			}
			change(ctx, of)
			<-turns
			close(done[i])
		}()
	}
	for i, of := range all {
		select {
		case <-done[i]:
		case <-ctx.Done():
			switch {
			case closed(done[i]):
			case before[i] == nil || closed(before[i]):
				left++
			default:
				stuck = append(stuck, of[0].Container)
			}
		}
	}
	return left, stuck
}

// earlier is closed when the change of a container that is under way has ended. It is nil where none is.
func (c *changing) earlier(id sandbox.ID) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.underWay[id]
}

// begin waits until no change of a container is under way, and reports whether the caller's is: not where ctx ends.
func (c *changing) begin(ctx context.Context, id sandbox.ID) bool {
	for {
		ends, begun := c.take(id)
		if begun {
			return true
		}
		select {
		case <-ends:
		case <-ctx.Done():
			return false
		}
	}
}

// take begins a change of a container, unless one is under way, whose end is told.
func (c *changing) take(id sandbox.ID) (ends <-chan struct{}, begun bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ends, ok := c.underWay[id]; ok {
		return ends, false
	}
	if c.underWay == nil {
		c.underWay = map[sandbox.ID]chan struct{}{}
	}
	c.underWay[id] = make(chan struct{})
	return nil, true
}

func (c *changing) end(id sandbox.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.underWay[id])
	delete(c.underWay, id)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
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

// changeFirst makes what a plugin that joins wants changed. An error has it dropped, so that it joins again and has the
// rest made then. What would be left at each join, since an earlier change of that container hangs, keeps it out no
// longer.
func changeFirst(ctx context.Context, p *Plugins, changes []pod.Change) error {
	within := p.cfg.SynchronizationTimeout
	left, stuck := p.changing.all(ctx, within, changes, p.change)
	if len(stuck) > 0 {
		p.cfg.Log.Warn("NRI: what a plugin that joins wants of containers is not done: an earlier change of theirs hangs",
			"containers", stuck)
	}
	if left == 0 {
		return nil
	}
	p.cfg.Log.Warn("NRI: what a plugin that joins wants changed is not all done in time, and new pods wait no longer",
		"containers_left", left, "allowed", within)
	if p.health.isStarting() { // a program of plugin_dir would not come again
		return nil
	}
	return fmt.Errorf("what it wants of %d containers was not done in %v: it is dropped, and may join again", left, within)
}

// changeLate makes what plugins want of others at events that were told late. It is called when nobody is kept waiting
// but its caller, who waits no longer than for a plugin that joins, and not when ctx has ended.
func changeLate(ctx context.Context, p *Plugins, changes []pod.Change) {
	if len(changes) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		within := p.cfg.SynchronizationTimeout
		if left, stuck := p.changing.all(context.Background(), within, changes, p.change); left > 0 || len(stuck) > 0 {
			p.cfg.Log.Warn("NRI: what plugins want changed at ends that they were told of late is not all done in time",
				"containers_left", left, "containers_stuck", stuck, "allowed", within)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// apply makes what plugins want done to one container.
func apply(ctx context.Context, p *Plugins, of []pod.Change) {
	defer survive(p.cfg.Log, "a change could not be made", "container", of[0].Container)
	p.pods.Limiter.Apply(ctx, of)
}
