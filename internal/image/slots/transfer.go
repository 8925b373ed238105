package slots

import (
	"container/list"
	"context"
	"io"
	"time"
)

// Transfer is one download. Its methods but Received and Starves are called by one goroutine at a time.
type Transfer struct {
	pool *Pool
	name string        // of its host
	wake chan struct{} // gets an element when something has changed for who waits

	// The rest is guarded by the pool.

	host   *host // nil before Begin and after End
	end    context.CancelCauseFunc
	opened time.Time // zero until it has begun
	queued *list.Element

	slot  bool
	since time.Time // when it got the slot
	meter meter
	pace  pace // what it got with its last slot

	credit  float64   // bytes that it may receive without a slot
	paid    time.Time // until when the credit was added up
	reading time.Time // when the read under way began; zero when there is none
	stopped time.Time // when the last read was over: what comes after is work

	bytes int64
}

// pace is what a meter said, which counts for a while.
type pace struct {
	rate, idle float64
	until      time.Time
}

// Begin waits for the transfer's turn. The context that it returns ends with ctx, with End, or when the transfer has to
// make room: then its cause is an error that says so.
func (t *Transfer) Begin(ctx context.Context) (context.Context, error) {
	own, end := context.WithCancelCause(ctx)
	t.pool.enter(t, end)
	for !t.pool.hasBegun(t) {
		select {
		case <-t.wake:
		case <-own.Done():
			t.End()
			return nil, context.Cause(own)
		}
	}
	return own, nil
}

// End gives back what the transfer has. It may be called again, and before Begin.
func (t *Transfer) End() { t.pool.leave(t) }

// Received returns how many bytes the transfer has. Anybody may call it.
func (t *Transfer) Received() int64 { return t.pool.received(t) }

// Starves says that the transfer mostly waits for its host, and gets less than the Floor. Anybody may call it.
func (t *Transfer) Starves() bool { return t.pool.starves(t) }

// Await says that the transfer waits for its host until its next Read is over, as while a connection is made.
func (t *Transfer) Await() { t.pool.await(t) }

// Read reads from r when the transfer may receive more, and waits for that until ctx ends.
func (t *Transfer) Read(ctx context.Context, r io.Reader, p []byte) (int, error) {
	for {
		wait := t.pool.beforeRead(t)
		if wait == 0 {
			break
		}
		if err := t.sleep(ctx, wait); err != nil {
			return 0, err
		}
	}
	n, err := r.Read(p)
	t.pool.afterRead(t, n)
	return n, err
}

func (t *Transfer) sleep(ctx context.Context, d time.Duration) error {
	stop := t.pool.clock.AfterFunc(d, t.notify)
	defer stop()
	select {
	case <-t.wake:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// notify has whoever waits look again.
func (t *Transfer) notify() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// state returns how fast the transfer is with its slot, and how much of the time it waits for its host. As long as it
// has the slot for less than a window, that is what it was with the last one; fast when that is not known.
func (t *Transfer) state(now time.Time) (rate, idle float64) {
	if now.Sub(t.since) >= window {
		return t.meter.read(now, t.reading)
	}
	if now.Before(t.pace.until) {
		return t.pace.rate, t.pace.idle
	}
	return unknownRate, 0
}

func (t *Transfer) isStarving(now time.Time) bool {
	rate, idle := t.state(now)
	return rate < Floor && idle >= mostlyIdle
}

// getsLittle says that the transfer mostly waits for its host, with a slot or without, and gets less than the Floor.
func (t *Transfer) getsLittle(now time.Time) bool {
	rate, idle := t.meter.read(now, t.reading)
	return rate < Floor && idle >= mostlyIdle
}

// isBlocked says that the transfer makes no use of its slot now: its host sends nothing, or has not begun to.
func (t *Transfer) isBlocked(now time.Time) bool {
	return !t.reading.IsZero() && now.Sub(later(t.reading, t.since)) >= blocked
}

// isSlow says that the transfer is known to get little, even with a slot.
func (t *Transfer) isSlow(now time.Time) bool {
	return now.Before(t.pace.until) && t.pace.rate < presumed/muchMore
}

// charge adds up the credit. Work done without a slot costs as well: few bytes may make much of it.
func (t *Transfer) charge(now time.Time) {
	t.credit = min(burst, t.credit+Floor*now.Sub(t.paid).Seconds())
	t.paid = now
	if !t.stopped.IsZero() {
		t.credit -= workCost * Floor * now.Sub(t.stopped).Seconds()
		t.stopped = time.Time{}
	}
}
