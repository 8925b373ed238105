package pod

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	"berth/internal/fault"
)

// ledger holds the record of one pod, in memory for readers and on disk for the next daemon.
type ledger struct {
	path  string
	dirty func(string)
	log   *slog.Logger
	rec   atomic.Pointer[Record]

	mu        sync.Mutex // guards the writing of rec, and unwritten
	unwritten bool       // the disk kept the record from being written
}

// update changes the record: fn changes a copy, which is written and then published. why names the fault points around
// the write.
func (l *ledger) update(why string, fn func(*Record) error) error {
	return l.change(why, fn, func(error) bool { return false })
}

// settle is update for what has already happened or must go on whatever the disk says: an exit, a step of a removal. A
// disk that is full, read-only or broken does not stop it: the record is published, and the next write that succeeds
// carries it.
func (l *ledger) settle(why string, fn func(*Record) error) error {
	return l.change(why, fn, func(err error) bool {
		var disk syscall.Errno
		if !errors.As(err, &disk) {
			return false
		}
		l.unwritten = true
		l.log.Warn("the pod's record is kept in memory until it can be written", "change", why, "error", err)
		return true
	})
}

func (l *ledger) change(why string, fn func(*Record) error, bearable func(error) bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.rec.Load().clone()
	if err := fn(next); err != nil {
		return err
	}
	if err := l.write(why, next); err != nil && !bearable(err) {
		return err
	}
	l.rec.Store(next)
	return nil
}

// persist writes the record again where the disk kept it from being written.
func (l *ledger) persist() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.unwritten {
		return nil
	}
	return l.write("persist", l.rec.Load())
}

func (l *ledger) write(why string, r *Record) error {
	if fault.Enabled {
		if err := fault.At("record." + why + ".before"); err != nil {
			return err
		}
	}
	if err := recordKind.Write(l.path, r); err != nil {
		return fmt.Errorf("pod %s: %w", r.ID, err)
	}
	l.unwritten = false
	l.dirty(l.path)
	if fault.Enabled {
		return fault.At("record." + why + ".after")
	}
	return nil
}
