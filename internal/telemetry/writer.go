package telemetry

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// Writer writes lines of a log for whom nothing may wait for long, to what may not take them: journald on a disk that
// hangs, a pipe that nobody reads, a terminal that was stopped. Each line waits until it is written, so that the last
// one before a crash is not missing. From one on that is not written in time, lines wait in memory, and those beyond a
// limit are lost and counted.
type Writer struct {
	to    io.Writer
	limit int64 // of the bytes that wait
	// Lost is called when lines are written again, with the number of those that were lost; it may be nil.
	Lost func(lines int64)
	// Taken is called when lines are not written any more, in time or at all, and when they are again; it may be nil.
	// Nothing is written meanwhile, and it must not write.
	Taken func(bool)

	mu      sync.Mutex // guards what follows
	waiting []byte
	spare   []byte        // the one before, to be filled next
	written chan struct{} // closed when what waits is written
	idle    chan struct{} // closed when write ends; nil while it does not run
	late    time.Time     // when the first line that was not written in time came; zero if all are
	failed  error         // of the last lines; nil if they were written
	since   time.Time     // when the first of those that failed did
	lost    int64         // lines since Lost was called
	total   int64         // lines that were ever lost
}

// inTime is how long a line may wait to be written, and hold up what it tells of.
const inTime = 100 * time.Millisecond

// spareSize is the most that a Writer keeps for the next lines.
const spareSize = 16 << 10

// NewWriter returns a Writer with a limit in bytes.
func NewWriter(to io.Writer, limit int64) *Writer {
	return &Writer{to: to, limit: limit, written: make(chan struct{})}
}

// Write takes whole lines. It never fails: there is nobody to tell.
func (w *Writer) Write(lines []byte) (int, error) {
	written, late := w.take(lines)
	if late {
		return len(lines), nil
	}
	timer := time.NewTimer(inTime)
	defer timer.Stop()
	select {
	case <-written:
	case came := <-timer.C:
		w.isLate(written, came.Add(-inTime))
	}
	return len(lines), nil
}

// take has lines wait, and returns a channel that is closed when they are written, or true if that is not waited for.
func (w *Writer) take(lines []byte) (written chan struct{}, late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) > 0 && int64(len(w.waiting)+len(lines)) > w.limit {
		w.lost, w.total = w.lost+count(lines), w.total+count(lines)
		return nil, true
	}
	w.waiting = append(w.waiting, lines...)
	if w.idle == nil {
		w.idle = make(chan struct{})
		go w.write()
	}
	return w.written, !w.late.IsZero()
}

func count(lines []byte) int64 { return int64(bytes.Count(lines, []byte("\n"))) }

// isLate notes that lines wait for too long, unless they were written just now.
func (w *Writer) isLate(written chan struct{}, since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-written:
	default:
		if w.late.IsZero() {
			w.tell(func() { w.late = since })
		}
	}
}

// tell makes a change, and tells whether lines are written since, if that is another than before.
func (w *Writer) tell(change func()) {
	before := w.taken()
	change()
	if now := w.taken(); now != before && w.Taken != nil {
		w.Taken(now)
	}
}

func (w *Writer) taken() bool { return w.late.IsZero() && w.failed == nil }

// write writes until nothing waits.
func (w *Writer) write() {
	for {
		lines, written := w.next()
		if lines == nil {
			return
		}
		_, err := w.to.Write(lines)
		w.wrote(lines, written, err)
	}
}

func (w *Writer) next() (lines []byte, written chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		close(w.idle)
		w.idle = nil
		return nil, nil
	}
	lines, written = w.waiting, w.written
	w.waiting, w.spare, w.written = w.spare[:0], nil, make(chan struct{})
	return lines, written
}

// wrote notes that lines were written, or could not be: the disk is full, or nobody reads them any more.
func (w *Writer) wrote(lines []byte, written chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.lost, w.total = w.lost+count(lines), w.total+count(lines)
	}
	if cap(lines) <= spareSize {
		w.spare = lines
	}
	w.tell(func() {
		if err != nil && w.failed == nil {
			w.since = time.Now()
		}
		w.late, w.failed = time.Time{}, err
	})
	close(written)
	if err == nil && w.lost > 0 && w.Lost != nil {
		go w.Lost(w.lost)
		w.lost = 0
	}
}

// Flush waits until all lines are written, but no longer than that.
func (w *Writer) Flush(within time.Duration) {
	w.mu.Lock()
	idle := w.idle
	w.mu.Unlock()
	if idle == nil {
		return
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}

// WriterState is how a Writer does.
type WriterState struct {
	Since time.Time // lines are not written in time, or at all; zero if they are
	Err   error     // why they are not written; nil where they only are late
	Lost  int64     // lines that were ever lost
}

// State returns how the writer does.
func (w *Writer) State() WriterState {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return WriterState{w.since, w.failed, w.total}
	}
	return WriterState{w.late, nil, w.total}
}
