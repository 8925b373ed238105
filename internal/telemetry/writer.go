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

	mu      sync.Mutex // guards what follows
	waiting []byte
	spare   []byte        // the one before, to be filled next
	written chan struct{} // closed when what waits is written
	busy    bool          // write runs
	late    time.Time     // when the first line that was not written in time came; zero if all are
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
	if !w.busy {
		w.busy = true
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
			w.late = since
		}
	}
}

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
		w.busy = false
		return nil, nil
	}
	lines, written = w.waiting, w.written
	w.waiting, w.spare, w.written = w.spare[:0], nil, make(chan struct{})
	return lines, written
}

// wrote notes that lines were written, or could not be: the disk is full, or nobody reads them any more. Those are not
// told by Lost, which would try to write.
func (w *Writer) wrote(lines []byte, written chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.total += count(lines)
	}
	if cap(lines) <= spareSize {
		w.spare = lines
	}
	w.late = time.Time{}
	close(written)
	if w.lost > 0 && w.Lost != nil {
		go w.Lost(w.lost)
		w.lost = 0
	}
}

// State returns since when lines are not written in time, zero if they are, and how many were ever lost.
func (w *Writer) State() (late time.Time, lost int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.late, w.total
}
