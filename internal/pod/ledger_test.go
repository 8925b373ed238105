package pod

import (
	"log/slog"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"berth/internal/record"
	"berth/internal/sandbox"
)

// TestWritesAreTimedByTheMonotonicClock wants the beginning of a write to be known by a clock that nobody sets: how
// long an exit or a stop waits for the disk is reckoned from it.
func TestWritesAreTimedByTheMonotonicClock(t *testing.T) {
	l := &ledger{dirty: func(string) {}}
	l.put = func(string, *sandbox.Record, int) error {
		if began := l.writing.Load(); began == nil || !strings.Contains(began.String(), " m=") {
			t.Errorf("a write that is under way began at %v", began)
		}
		return nil
	}
	if err := writeRecord(l, "test", &sandbox.Record{}, record.MaxSize); err != nil || l.writing.Load() != nil {
		t.Errorf("after the write: %v, %v", l.writing.Load(), err)
	}
}

// TestRecordIsTriedAgainThatFailsAtOnce has a disk that is full have room for a moment, in which the record is written,
// and be full again when the next change is: that one is tried again, too. With one processor the second write has
// failed before it is seen that the first one is done.
func TestRecordIsTriedAgainThatFailsAtOnce(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := &ledger{dirty: func(string) {}, log: slog.New(slog.DiscardHandler), feed: &Feed{}, turn: make(chan struct{}, 1)}
	l.rec.Store(&sandbox.Record{State: sandbox.Ready})
	tries, writes, last := 0, 0, (*batch)(nil)
	l.later = func() { tries++ }
	change := func(r *sandbox.Record) error { r.StopAsked = !r.StopAsked; return nil }
	l.put = func(string, *sandbox.Record, int) error {
		if writes++; writes != 2 {
			return syscall.ENOSPC
		}
		last, _ = l.publishAsync("test", change)
		return nil
	}
	if err := l.publish("test", change); err != nil || tries != 1 {
		t.Fatalf("the first change: %v, %d tries", err, tries)
	}
	err := l.persist()
	awaitWrite(l, last)
	l.hold(func(*sandbox.Record) {
		if !l.unwritten || err == nil && tries == 1 {
			t.Errorf("after %d writes it is not on the disk (%v), and nobody tries again", writes, l.unwritten)
		}
	})
	writes = 0
	l.put = func(string, *sandbox.Record, int) error {
		if writes++; writes == 1 {
			_, _ = l.publishAsync("test", change)
		}
		return nil
	}
	if err := l.persist(); err != nil || writes != 2 || l.unwritten || l.behind {
		t.Errorf("with room on the disk: %v, %d writes, unwritten %v, behind %v", err, writes, l.unwritten, l.behind)
	}
}
