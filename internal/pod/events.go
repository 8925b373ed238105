package pod

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/limit"
	"berth/internal/sandbox"
)

// EventKind says what happened to a pod or a container.
type EventKind int

// What happens in the life of a pod or a container, as those see it who list them.
const (
	EventCreated EventKind = iota
	EventStarted
	EventStopped
	EventDeleted
	// EventLimit says that a container has reached a limit, which CRI has no event for: those get it who ask for it.
	EventLimit
)

// String is the kind's name in metrics.
func (k EventKind) String() string {
	return [...]string{"created", "started", "stopped", "deleted", "limit"}[k]
}

// Event is a change of a pod or a container that has happened: whoever looks now sees it, or what came after it.
type Event struct {
	Kind   EventKind
	ID     sandbox.ID // the container's, or the pod's own
	At     time.Time
	Record *sandbox.Record // the pod and its containers as the change left them

	Reason, Message string // of an EventLimit
}

// Feed hands events to those who watch. Without watchers an event costs one look at a number.
type Feed struct {
	log     *slog.Logger
	count   atomic.Int32 // of watchers
	clients atomic.Int32 // of those that are not the daemon's own
	dropped atomic.Uint64
	lost    atomic.Uint64                 // events, with the watchers that were dropped
	sent    [EventLimit + 1]atomic.Uint64 // events, by kind

	turn     sync.Mutex // guards watchers, and keeps the order of events the same for all
	watchers map[*Watcher]struct{}
}

// Watcher receives the events from its making on. Its Next is for one goroutine.
type Watcher struct {
	feed  *Feed
	only  func(Event) bool // says which events the daemon wants for itself; nil for a client, who gets all
	ready chan struct{}    // holds one token when there is something to read

	mu     sync.Mutex // below the feed's turn
	unread []Event
	lost   bool // an event found the queue full
}

// EventCounts says how many clients watch, and how many did not keep up.
type EventCounts struct {
	Watchers int
	Dropped  uint64 // watchers that did not read, since the daemon began
}

// EventCounts never waits.
func (f *Feed) EventCounts() EventCounts {
	return EventCounts{int(f.clients.Load()), f.dropped.Load()}
}

// Totals is what became of the events that had watchers.
type Totals struct {
	Sent map[string]int // by kind; to two who watch is two
	Lost int            // those that a watcher had not read when it was dropped
}

// EventTotals never waits.
func EventTotals(s *Pods) Totals {
	t := Totals{Sent: map[string]int{}, Lost: int(s.Feed.lost.Load())}
	for k := range s.Feed.sent {
		t.Sent[EventKind(k).String()] = int(s.Feed.sent[k].Load())
	}
	return t
}

// Watch begins to receive events for a client. The caller closes the watcher.
func (f *Feed) Watch() *Watcher { return watch(f, nil) }

// WatchFor begins to receive the events that the daemon wants for itself. The caller closes the watcher.
func WatchFor(s *Pods, only func(Event) bool) *Watcher { return watch(&s.Feed, only) }

func watch(f *Feed, only func(Event) bool) *Watcher {
	w := &Watcher{feed: f, only: only, ready: make(chan struct{}, 1)}
	f.turn.Lock()
	defer f.turn.Unlock()
	if f.watchers == nil {
		f.watchers = map[*Watcher]struct{}{}
	}
	f.watchers[w] = struct{}{}
	recount(f)
	return w
}

// Close ends it. It may be repeated.
func (w *Watcher) Close() {
	w.feed.turn.Lock()
	defer w.feed.turn.Unlock()
	w.feed.drop(w)
}

// drop takes a watcher out. With turn held.
func (f *Feed) drop(w *Watcher) {
	delete(f.watchers, w)
	recount(f)
}

// recount publishes how many watch. With turn held.
func recount(f *Feed) {
	clients := int32(0)
	for w := range f.watchers {
		if w.only == nil {
			clients++
		}
	}
	f.count.Store(int32(len(f.watchers)))
	f.clients.Store(clients)
}

// Next waits for the next event. The error is that of ctx, or says that events came faster than they were read: then
// they are lost, and the watcher is done.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	for {
		w.mu.Lock()
		if w.lost {
			defer w.mu.Unlock()
			return Event{}, fmt.Errorf("events were not read as fast as they came, and are lost; watch again, then list "+
				"what there is: %w", limit.UnreadEvents.Exceeded())
		}
		if len(w.unread) > 0 {
			defer w.mu.Unlock()
			e := w.unread[0]
			if w.unread = w.unread[1:]; len(w.unread) == 0 {
				w.unread = nil // a burst is over
			}
			return e, nil
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		case <-w.ready:
		}
	}
}

// Sent notes that the event was sent to the client.
func (w *Watcher) Sent(e Event) { w.feed.sent[e.Kind].Add(1) }

// push never waits. It says whether the watcher still keeps up and, where it does not, how many events it has lost.
func (w *Watcher) push(e Event) (keepsUp bool, lost int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	keepsUp = limit.UnreadEvents.Check(int64(len(w.unread)+1)) == nil
	if keepsUp {
		w.unread = append(w.unread, e)
	} else {
		lost = len(w.unread) + 1
		w.lost, w.unread = true, nil
	}
	select {
	case w.ready <- struct{}{}:
	default:
	}
	return keepsUp, lost
}

// watched reports whether anybody watches.
func (f *Feed) watched() bool { return f.count.Load() > 0 }

// publish hands events to all who watch. It never waits for them.
func (f *Feed) publish(events ...Event) {
	f.turn.Lock()
	defer f.turn.Unlock()
	for w := range f.watchers {
		for i, e := range events {
			if w.only != nil && !w.only(e) {
				continue
			}
			keepsUp, lost := w.push(e)
			if keepsUp {
				continue
			}
			f.drop(w)
			if w.only != nil {
				break // it looks at everything again
			}
			f.lost.Add(uint64(lost + len(events) - i - 1))
			f.dropped.Add(1)
			f.log.Warn("a client does not read the events that it asked for; its stream is ended", "unread",
				limit.UnreadEvents.Limit)
			break
		}
	}
}

// changes are the events that lie between two records of one pod.
func changes(before, after *sandbox.Record, at time.Time) []Event {
	var all []Event
	add := func(id sandbox.ID, kinds ...EventKind) {
		for _, k := range kinds {
			all = append(all, Event{Kind: k, ID: id, At: at, Record: after})
		}
	}
	for _, c := range before.Containers {
		if now := after.Container(c.ID); now != nil {
			add(c.ID, became(c, now)...)
		} else if c.Listed() {
			add(c.ID, EventDeleted)
		}
	}
	switch {
	case before.State == after.State:
	case after.State == sandbox.Ready:
		add(after.ID, EventCreated, EventStarted)
	case after.State == sandbox.Stopped:
		add(after.ID, EventStopped)
	}
	return all
}

// became is what happened to a container on its way from c to now. One that ended before its start was seen has
// started.
func became(c, now *sandbox.Container) []EventKind {
	switch {
	case c.State == now.State:
		return nil
	case now.State == sandbox.Created:
		return []EventKind{EventCreated}
	case now.State == sandbox.Running:
		return []EventKind{EventStarted}
	case now.State == sandbox.Exited && c.State == sandbox.Starting && now.Reason != sandbox.ReasonCannotRun:
		return []EventKind{EventStarted, EventStopped}
	case now.State == sandbox.Exited:
		return []EventKind{EventStopped}
	}
	return nil
}
