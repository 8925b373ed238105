package pod

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"berth/internal/fault"
	"berth/internal/room"
)

// ledger holds the record of one pod, in memory for readers and on disk for the next daemon.
type ledger struct {
	root  string // whose file system it is
	path  string
	dirty func(string)
	later func() // has persist called until it succeeds
	log   *slog.Logger
	feed  *feed
	rec   atomic.Pointer[Record]
	// writing is when the write that is under way began, in nanoseconds; 0 without one. A disk that hangs is seen by
	// it, while mu is held.
	writing atomic.Int64

	mu        sync.Mutex // guards the writing of rec, and what follows
	unwritten bool       // the disk kept the record from being written
	behind    bool       // and it is tried again
	announced bool       // that the pod is there was, or may have been, told to those who watch
}

// makeRoom is what to do about a file system of pods that is full.
const makeRoom = "remove containers, images or what else is there"

// update changes the record: fn changes a copy, which is written and then published. why names the fault points around
// the write.
func (l *ledger) update(why string, fn func(*Record) error) error {
	return l.change(why, fn, func(error) bool { return false })
}

// settle is update for what has already happened or must go on whatever the disk says: an exit, a step of a removal. A
// disk that is full, read-only or broken does not stop it: the record is published, and written as soon as the disk takes it.
func (l *ledger) settle(why string, fn func(*Record) error) error {
	return l.change(why, fn, func(err error) bool {
		if !ofDisk(err) {
			return false
		}
		l.unwritten = true
		if !l.behind {
			l.behind = true
			l.later()
		}
		l.log.Warn("the pod's record is kept in memory until it can be written", "change", why, "error", err)
		return true
	})
}

func (l *ledger) change(why string, fn func(*Record) error, bearable func(error) bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.rec.Load()
	next := was.clone()
	if err := fn(next); err != nil {
		return err
	}
	if err := l.write(why, next); err != nil && !bearable(err) {
		return err
	}
	l.rec.Store(next)
	l.announced = l.announced || next.State == Ready
	if l.feed.watched() {
		l.feed.publish(changes(was, next, time.Now())...)
	}
	return nil
}

// ended tells those who watch that the pod is gone, if they ever heard of it.
func (l *ledger) ended() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.rec.Load(); l.announced && l.feed.watched() {
		l.feed.publish(Event{EventDeleted, r.ID, time.Now(), r})
	}
	l.announced = false
}

// persist writes the record again where the disk kept it from being written, and ends what later began. A pod that is being removed
// needs no record.
func (l *ledger) persist() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.rec.Load(); l.unwritten && r.State != Removing {
		if err := l.write("persist", r); err != nil {
			return err
		}
	}
	l.unwritten, l.behind = false, false
	return nil
}

// ofDisk says that the disk, and not the request or a test, is what fails.
func ofDisk(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno)
}

func (l *ledger) write(why string, r *Record) error {
	l.writing.Store(time.Now().UnixNano())
	defer l.writing.Store(0)
	if fault.Enabled {
		if err := fault.At("record." + why + ".before"); err != nil {
			return err
		}
	}
	if err := recordKind.Write(l.path, r); err != nil {
		return fmt.Errorf("pod %s: %w", r.ID, room.Explain(err, l.root, makeRoom))
	}
	l.unwritten = false
	l.dirty(l.path)
	if fault.Enabled {
		return fault.At("record." + why + ".after")
	}
	return nil
}
