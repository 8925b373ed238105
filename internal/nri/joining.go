package nri

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/containerd/nri/pkg/adaptation"

	"berth/internal/pod"
	"berth/internal/sandbox"
)

// event is something that has happened to a pod, or to its container c.
type event struct {
	moment pod.Moment
	r      *sandbox.Record
	c      *sandbox.Container
}

// joining keeps what happens while a plugin is shown what there is. The adaptation would tell it only to the plugins
// that have joined already, and the new one would believe for ever what it was shown. All are told afterwards, in the
// order in which it happened: what happens never waits for a plugin that joins.
type joining struct {
	tell func(event) []pod.Change // returns what plugins want done to others

	turn sync.Mutex // held while kept events are told; mu may be locked below it

	mu   sync.Mutex // guards what follows; nothing else is locked below it
	open bool       // a plugin is shown what there is, or events of that time are not all told
	kept []event
}

// begin has events kept from now on. It is called before what there is is looked up.
func (j *joining) begin() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open = true
}

// keep reports whether an event is told later.
func (j *joining) keep(e event) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.open {
		j.kept = append(j.kept, e)
	}
	return j.open
}

// settle tells what was kept, ends the keeping, and returns what plugins want done to others by that. The caller keeps
// plugins from joining meanwhile.
func (j *joining) settle() (changes []pod.Change) {
	if !j.isOpen() {
		return nil
	}
	j.turn.Lock()
	defer j.turn.Unlock()
	for {
		e, ok := j.next()
		if !ok {
			return changes
		}
		changes = append(changes, j.tell(e)...)
	}
}

// hold keeps plugins from joining until release is called. What has happened before is told before. What plugins want
// done to others by that is done by release, when nothing is held any more. A caller whose ctx ends does not wait: what
// is held for it is given back.
func hold(ctx context.Context, p *Plugins, a *adaptation.Adaptation) (release func(), err error) {
	held := make(chan func())
	go func() {
		block := a.BlockPluginSync()
		changes := p.joining.settle()
		release := func() {
			block.Unblock()
			changeLate(ctx, p, changes)
		}
		select {
		case held <- release:
		case <-ctx.Done():
			release()
		}
	}()
	select {
	case release := <-held:
		return release, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (j *joining) isOpen() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.open
}

// next takes the first event that is kept. When there is none no more are kept.
func (j *joining) next() (e event, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.kept) == 0 {
		j.open, j.kept = false, nil
		return e, false
	}
	e, j.kept = j.kept[0], j.kept[1:]
	return e, true
}

// tellLate tells of an event that was kept, and returns what plugins want done to others.
func tellLate(p *Plugins, e event) []pod.Change {
	defer survive(p.cfg.Log, "an event could not be told", "pod", e.r.ID)
	changes, err := p.tellNow(context.Background(), e) // each plugin has its time to answer
	if err != nil {
		p.cfg.Log.Warn("a plugin failed to handle an event", "pod", e.r.ID, "error", err)
		return nil
	}
	return changes
}

// survive ends a panic in what is nobody's operation. It is deferred.
func survive(log *slog.Logger, what, kind string, id sandbox.ID) {
	if r := recover(); r != nil {
		log.Error("NRI: "+what, kind, id, "panic", r, "stack", string(debug.Stack()))
	}
}

// tellNow tells all plugins that have joined.
func (p *Plugins) tellNow(ctx context.Context, e event) ([]pod.Change, error) {
	if p.none() {
		return nil, nil
	}
	changes, err := tell(ctx, p.a, e.moment, p.messages.pod(e.r), p.messages.of(e.r, e.c))
	return changes, p.roll.blame(ctx, err)
}
