package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/fault"
	"berth/internal/limit"
	"berth/internal/record"
	"berth/internal/sandbox"
)

// ledger holds the record of one pod, in memory for readers and on disk for the next daemon.
type ledger struct {
	root  string // whose file system it is
	path  string
	dirty func(string)
	later func() // has persist called until it succeeds
	log   *slog.Logger
	feed  *Feed
	rec   atomic.Pointer[sandbox.Record]
	// writing is when the write that is under way began, nil without one. A disk that hangs is seen by it. The time has
	// its monotonic reading, so that a clock that is set back meanwhile makes nobody wait longer.
	writing atomic.Pointer[time.Time]

	// put writes a record of so many bytes at most; another in tests.
	put func(path string, r *sandbox.Record, most int) error
	// turn is held by whoever writes to the disk, so that writes are in order. mu is never held meanwhile: a disk that
	// hangs keeps no caller from reading or publishing.
	turn chan struct{}

	mu        sync.Mutex // guards the publication of rec, and what follows
	batch     *batch     // what the writer is to write next, nil for nothing
	draining  bool       // the writer goes on
	unwritten bool       // what is published is not on the disk
	behind    bool       // the disk failed, and it is tried again
	failed    error      // of the last write, nil where it succeeded
	announced bool       // that the pod is there was, or may have been, told to those who watch
}

// record returns the record as it is now. It never waits.
func (l *ledger) record() *sandbox.Record { return l.rec.Load() }

// batch is one write of what is published, for all who asked for one before it began.
type batch struct {
	why  string
	done chan struct{} // closed when err is set
	err  error
}

// How long a change that has happened waits for the disk, and one that must be durable first.
const (
	publishWait = time.Second
	updateWait  = 30 * time.Second
)

// update changes the record: fn changes a copy, which is written and then published. It may be called again, where
// something else is published during the write. why names the fault points around the write. A disk that hangs ends it
// with ctx, or after updateWait; nothing is changed then. Nor is it where the record would be larger than
// limit.PodRecord.
func (l *ledger) update(ctx context.Context, why string, fn func(*sandbox.Record) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, updateWait, errGivenUp)
	defer cancel()
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return diskHangs(l, why, context.Cause(ctx))
	}
	l.mu.Lock()
	base := l.rec.Load()
	next := base.Clone()
	err := fn(next)
	l.mu.Unlock()
	if err != nil {
		<-l.turn
		return err
	}
	written := make(chan error, 1)
	go func() { written <- writeRecord(l, why, next, int(limit.PodRecord.Limit)) }()
	select {
	case err = <-written:
	case <-ctx.Done():
		go takeBack(l, written)
		return diskHangs(l, why, context.Cause(ctx))
	}
	defer func() { <-l.turn }()
	if err != nil {
		return err
	}
	return publishWritten(l, base, next, fn)
}

// publishWritten publishes next, which is on the disk and was made of base.
func publishWritten(l *ledger, base, next *sandbox.Record, fn func(*sandbox.Record) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.rec.Load()
	if was == base {
		publishRecord(l, was, next)
		l.unwritten = false
		return nil
	}
	next = was.Clone()
	err := fn(next)
	if err == nil {
		publishRecord(l, was, next)
	}
	l.unwritten = true
	enqueueWrite(l, "persist")
	return err
}

// takeBack has the published record written again where an update was given up: the disk may have taken it later.
func takeBack(l *ledger, written <-chan error) {
	<-written
	<-l.turn
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unwritten = true
	enqueueWrite(l, "persist")
}

// errGivenUp ends a wait for the disk that was the daemon's own, not its caller's.
var errGivenUp = fail.New(errdefs.ErrUnavailable, "given up")

// diskHangs says that the disk did not answer in time. The kind of ended is its kind too, which tells a caller whose
// own deadline passed, or who left, from a wait that the daemon gave up.
func diskHangs(l *ledger, why string, ended error) error {
	id := l.rec.Load().ID
	return fail.About(fail.Detail{Pod: string(id)},
		"pod %s: write its record (%s): the disk of the records, %s, does not answer (%w, %w); "+
			"nothing was changed: ask again when it does",
		id, why, l.root, ended, syscall.ETIMEDOUT)
}

// publish is update for what has already happened or must go on whatever the disk says, and however large the record
// is: an exit, a step of a removal. The change is published at once. Then it is written; a disk that is full, read-only
// or broken, or hangs, does not stop it: the record is written as soon as the disk takes it.
func (l *ledger) publish(why string, fn func(*sandbox.Record) error) error {
	b, err := l.publishAsync(why, fn)
	if err == nil {
		awaitWrite(l, b)
	}
	return err
}

// publishAsync is publish that does not wait for the disk at all.
func (l *ledger) publishAsync(why string, fn func(*sandbox.Record) error) (*batch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.rec.Load()
	next := was.Clone()
	if err := fn(next); err != nil {
		return nil, err
	}
	publishRecord(l, was, next)
	l.unwritten = true
	return enqueueWrite(l, why), nil
}

// hold calls fn with the record that is published, and publishes no other before fn returns.
func (l *ledger) hold(fn func(r *sandbox.Record)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn(l.rec.Load())
}

// publishRecord makes next what everybody reads. mu is held.
func publishRecord(l *ledger, was, next *sandbox.Record) {
	l.rec.Store(next)
	l.announced = l.announced || next.State == sandbox.Ready
	if l.feed.watched() {
		l.feed.publish(changes(was, next, time.Now())...)
	}
}

// enqueueWrite has what is published written by the writer, of which there is one a pod at most. mu is held.
func enqueueWrite(l *ledger, why string) *batch {
	if l.batch == nil {
		l.batch = &batch{why: why, done: make(chan struct{})}
	}
	if !l.draining {
		l.draining = true
		go drainWrites(l)
	}
	return l.batch
}

// drainWrites writes until nothing is left to write.
func drainWrites(l *ledger) {
	for {
		l.turn <- struct{}{}
		l.mu.Lock()
		b, r := l.batch, l.rec.Load()
		l.batch, l.draining = nil, b != nil
		l.mu.Unlock()
		if b == nil {
			<-l.turn
			return
		}
		b.err = writeRecord(l, b.why, r, record.MaxSize)
		noteWrite(l, b, r)
		<-l.turn
		close(b.done)
	}
}

// noteWrite notes how the write of r ended.
func noteWrite(l *ledger, b *batch, r *sandbox.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed = b.err; b.err == nil {
		l.unwritten = l.unwritten && l.rec.Load() != r
		return
	}
	l.log.Warn("the pod's record is kept in memory until it can be written", "change", b.why, "error", b.err)
	if !l.behind {
		l.behind = true
		l.later()
	}
}

// awaitWrite waits for a write, but not long, and not at all on a disk that is known to hang. It says whether it was
// done.
func awaitWrite(l *ledger, b *batch) bool {
	left := publishWait
	if began := l.writing.Load(); began != nil {
		left -= time.Since(*began)
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-b.done:
		return true
	case <-timer.C:
		return false
	}
}

// ended tells those who watch that the pod is gone, if they ever heard of it.
func (l *ledger) ended() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.rec.Load(); l.announced && l.feed.watched() {
		l.feed.publish(Event{Kind: EventDeleted, ID: r.ID, At: time.Now(), Record: r})
	}
	l.announced = false
}

// persist writes the record again where it is not on the disk, and ends what later began. A pod that is being removed
// needs no record.
func (l *ledger) persist() error {
	b := unfinishedWrite(l)
	if b == nil {
		return nil
	}
	if !awaitWrite(l, b) {
		return diskHangs(l, b.why, errGivenUp)
	}
	if b.err != nil {
		return b.err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil { // a write after b, which has left it to who calls to try again
		return l.failed
	}
	l.behind = false
	return nil
}

// unfinishedWrite is the write that is still to be done, nil for none.
func unfinishedWrite(l *ledger) *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.unwritten || l.rec.Load().State == sandbox.Removing {
		l.behind = false
		return nil
	}
	return enqueueWrite(l, "persist")
}

// ofDisk says that the disk, and not the request or a test, is what fails.
func ofDisk(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno)
}

// writeRecord writes a record of so many bytes at most.
func writeRecord(l *ledger, why string, r *sandbox.Record, most int) error {
	began := time.Now()
	l.writing.Store(&began)
	defer l.writing.Store(nil)
	if fault.Enabled {
		if err := fault.At("record." + why + ".before"); err != nil {
			return err
		}
	}
	err := l.put(l.path, r, most)
	if large := (*record.SizeError)(nil); errors.As(err, &large) {
		err = limit.PodRecord.Check(int64(large.Size))
	}
	if err != nil {
		return fmt.Errorf("pod %s: %w", r.ID, diskspace.Explain(err, l.root, diskspace.MakeRoom))
	}
	l.dirty(l.path)
	if fault.Enabled {
		return fault.At("record." + why + ".after")
	}
	return nil
}

// persistAll writes what is not written yet of all pods. A disk that hangs is not waited for.
func persistAll(x *index) {
	var g sync.WaitGroup
	for _, p := range x.pods {
		g.Go(func() { _ = p.persist() })
	}
	g.Wait()
}
