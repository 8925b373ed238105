package monitor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/fault"
	"berth/internal/monitor/wire"
)

// logWriter brings what was taken of a container's streams to its log, and notes in the journal how far it is.
type logWriter struct {
	m       *Monitor
	ctr     string
	total   total
	kept    fileID        // the journal at first
	opening chan struct{} // has room for one, who reopens the log
	apart   chan struct{} // of a log of a deleted container, to which something was owed: closed when it is let go of
	dirty   atomic.Bool   // something was taken, or next set, since the log was last written
	sources [3]*source    // by stream

	// writing is held while the log is written to, which a hung disk can make last for ever. It guards file, the journal's
	// note and the sources, and is taken before mu.
	writing sync.Mutex
	file    *logFile // nil where there is no log
	owing   bool     // the output has ended, and the log is still to be told what was dropped
	limit   *limit   // of what is written to it; nil where there is none
	journal *journal // nil before the streams are opened, and after the last has ended

	mu     sync.Mutex // guards what follows
	next   *logFile   // takes file's place
	logged bool       // there is a log
	over   bool       // the output has ended, or the container is forgotten
}

// source is a stream as far as the log is concerned.
type source struct {
	n int
	window

	// The beginning of a line whose end has not been taken.
	waits bool
	since time.Time
	timer *time.Timer
	armed bool
}

// keep has the output be taken through a journal. Before any stream is opened.
func (w *logWriter) keep(j *journal) {
	w.journal, w.kept = j, j.id()
	for n := 1; n <= 2; n++ {
		w.sources[n] = &source{n: n}
		w.sources[n].open(j, n)
	}
}

// taken brings to the log what was taken.
func (w *logWriter) taken() {
	w.dirty.Store(true)
	w.write()
}

// write does what is to be done, unless another is at it, who then does it.
func (w *logWriter) write() {
	for w.dirty.Load() && w.writing.TryLock() {
		w.dirty.Store(false)
		w.takeNext()
		for _, s := range w.sources[1:] {
			if s != nil {
				w.bring(s, false)
			}
		}
		w.writing.Unlock()
	}
}

// release lets go of writing, and does what others have left to who had it.
func (w *logWriter) release() {
	w.writing.Unlock()
	w.write()
}

// makeRoom sees to it that something can be taken, and that it is much where output flows. It says whether it has made
// the window larger. By who takes.
func (w *logWriter) makeRoom(s *source, flows bool) (grown bool) {
	if flows {
		grown = s.grow()
	}
	if !s.scarce() {
		return grown
	}
	if s.free() == 0 {
		w.writing.Lock()
	} else if !w.writing.TryLock() {
		return grown
	}
	defer w.release()
	w.takeNext()
	w.bring(s, false)
	if s.rebase() {
		return grown
	}
	if s.grow() {
		return true
	}
	w.bring(s, true) // the beginning of a line that is longer than the window
	s.rebase()
	return grown
}

// shrink gives back what a window has grown by, if it is empty and nobody writes at the moment. By who takes.
func (w *logWriter) shrink(s *source) bool {
	if !w.writing.TryLock() {
		return false
	}
	defer w.release()
	return w.journal == nil || s.shrink()
}

// bring brings to the log what was taken of a stream: whole lines, and the beginning of one if it is to be flushed.
// With writing held.
func (w *logWriter) bring(s *source, flush bool) {
	if w.journal == nil {
		return
	}
	some := false
	switch {
	case s.left() == 0:
	case w.file == nil:
		n := *w.journal.note()
		n.batch.stream, n.batch.to = int64(s.n), s.taken.Load()
		w.brought(&n)
	default:
		b := w.m.takeBuffer()
		for w.bringBatch(s, b, flush) {
			some = true
		}
		w.m.giveBuffer(b)
	}
	if s.left() == 0 {
		s.waits = false
		return
	}
	if some || !s.waits {
		s.waits, s.since = true, time.Now()
	}
	w.arm(s, partTime)
}

// bringBatch writes as many entries to the log as fit into the buffer, and says whether there were any. What is about
// to be written is noted before, and that it was afterwards.
func (w *logWriter) bringBatch(s *source, b *buffer, flush bool) bool {
	done, at, room := s.done.Load(), time.Now(), bufferSize
	piece := w.journal.mem[done:s.taken.Load()]
	if w.limit != nil {
		if n := excessOf(w, s, piece, at, flush); n > 0 {
			drop(w, s, n, at)
			return true
		}
		room = w.limit.allows(bufferSize)
	}
	look(w, at)
	notice := w.file.notice(b[:0:room], at)
	entries, used := appendEntries(notice, piece, at, s.n, flush)
	if used == 0 {
		if w.limit == nil || ready(piece, flush) == 0 {
			return false
		}
		w.limit.dropping = true // the tokens do not suffice for an entry
		drop(w, s, ready(piece, flush), at)
		return true
	}
	commit(w, s, used, entries, len(notice), at)
	return true
}

// look looks at the log before something is written to it, so that it goes to the file that has the log's name: see
// tryAgain. A disk that hangs may hold it up. With writing held.
func look(w *logWriter, at time.Time) {
	w.mu.Lock()
	w.file.stays = w.file.stays || w.over
	w.mu.Unlock()
	w.file.sizeAt(at)
	w.file.tryAgain(at)
}

// commit writes entries that are made of so many bytes of a stream, with a notice before them.
func commit(w *logWriter, s *source, used int, entries []byte, notice int, at time.Time) {
	n := *w.journal.note()
	n.log, n.dropped, n.torn, n.excess = w.file.id, w.file.dropped, w.file.torn, w.file.excess
	n.batch = batch{
		stream: int64(s.n), to: s.done.Load() + int64(used), at: at.UnixNano(), size: w.file.sizeAt(at),
	}
	if w.limit != nil {
		n.bucket = w.limit.spend(len(entries))
	}
	w.journal.set(&n)
	_ = fault.At("monitor.log.noted")
	w.file.write(entries, notice, 0)
	n.dropped, n.torn, n.excess = w.file.dropped, w.file.torn, w.file.excess
	w.brought(&n)
	_ = fault.At("monitor.log.brought")
}

// commitNotice writes what is to be noticed, and no entries. With writing held.
func commitNotice(w *logWriter, at time.Time) {
	b := w.m.takeBuffer()
	defer w.m.giveBuffer(b)
	look(w, at)
	notice := w.file.notice(b[:0], at)
	commit(w, w.sources[1], 0, notice, len(notice), at)
}

// brought notes that the batch of a note is in the log.
func (w *logWriter) brought(n *note) {
	s := w.sources[n.batch.stream]
	if to := n.batch.to; w.limit != nil && to > n.done[s.i] {
		n.excess.open[s.i] = w.journal.mem[to-1] != '\n'
		if w.file != nil {
			w.file.excess.open = n.excess.open
		}
	}
	n.done[s.i] = n.batch.to
	s.done.Store(n.batch.to)
	n.batch = batch{}
	w.journal.set(n)
}

// arm sees to it that the beginning of a line does not wait for ever: a prompt has no end. With writing held.
func (w *logWriter) arm(s *source, d time.Duration) {
	if s.armed {
		return
	}
	s.armed = true
	if s.timer == nil {
		s.timer = time.AfterFunc(d, func() { w.late(s) })
	} else {
		s.timer.Reset(d)
	}
}

// late writes what has waited for long enough.
func (w *logWriter) late(s *source) {
	w.writing.Lock()
	defer w.release()
	s.armed = false
	if rest := partTime - time.Since(s.since); s.waits && rest > 0 {
		w.arm(s, rest)
	} else {
		w.takeNext()
		w.bring(s, true)
	}
}

// lookAtDropped writes the notice of what was dropped when there are tokens for it, and tells the daemon when it may.
func lookAtDropped(w *logWriter) {
	w.writing.Lock()
	defer w.release()
	l, at := w.limit, time.Now()
	l.armed = false
	w.takeNext()
	if w.journal == nil || w.file == nil {
		return
	}
	l.refill(at)
	if l.dropping = l.dropping && l.tokens < l.enough(); !l.dropping {
		bringNotice(w, at)
	}
	if l.untold && at.Sub(l.saidAt) >= tellPause {
		tellDropped(w, at)
	}
	switch {
	case l.dropping || w.file.excess.Lines > 0: // on a full disk
		lookLater(w, max(l.quantum(), noticePause))
	case l.untold:
		lookLater(w, tellPause-at.Sub(l.saidAt))
	}
}

// end brings the rest of a stream that has ended to the log. After the last, which last tells, nothing more is written.
func (w *logWriter) end(s *source, last func() bool) {
	w.writing.Lock()
	defer w.release()
	w.takeNext()
	w.bring(s, true)
	lastNotice(w, s)
	if last() {
		w.finish()
	}
}

// shut lets go of a log to which nothing will come.
func (w *logWriter) shut() {
	w.writing.Lock()
	defer w.release()
	w.finish()
}

// stay has what is still to be written go to no other file, and the log not be reopened: the output has ended, or the
// container is forgotten, and its log may be removed and make room for another's.
func stay(w *logWriter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
}

// finish lets go of the log and of the journal. With writing held.
func (w *logWriter) finish() {
	stay(w)
	w.takeNext()
	if w.file != nil {
		w.file.stays = true
		w.file.tryAgain(time.Now())
	}
	w.limit.stop()
	switch {
	case w.owing:
	case w.journal != nil && w.file != nil && w.file.owed():
		w.owing = true
		go pay(w)
	default:
		closeLog(w)
	}
}

// closeLog is for output that has ended, and owes the log nothing. With writing held.
func closeLog(w *logWriter) {
	if w.file != nil {
		w.file.close()
		w.file = nil
	}
	if w.journal != nil {
		if w.journal.remove() || w.apart != nil {
			removeOwed(w.m, w.ctr)
		}
		w.journal = nil
		if w.apart != nil {
			close(w.apart)
		}
	}
}

// A notice that nothing comes after is tried again with pauses, for as long as a disk is commonly full: a kubelet that
// makes room looks every minute.
const noticePause, noticeTries = time.Second, 120

// pay tells the log of ended output what was dropped, when there is room. Until then the journal stays, by which a
// monitor that takes over does the same.
func pay(w *logWriter) {
	for range noticeTries {
		if lastWord(w) {
			return
		}
		time.Sleep(noticePause)
	}
	w.writing.Lock()
	defer w.release()
	closeLog(w)
}

// lastWord tries to write the notice, and lets go of the log when it is there.
func lastWord(w *logWriter) bool {
	w.writing.Lock()
	defer w.release()
	commitNotice(w, time.Now())
	if w.file.owed() {
		return false
	}
	closeLog(w)
	return true
}

// goOn pays what another monitor owed to the log when it was killed. If nothing was owed, the log waits for the end of
// the output.
func goOn(w *logWriter) {
	w.writing.Lock()
	defer w.release()
	if w.file != nil && !w.file.clean() {
		w.finish()
	}
}

// to begins the log; nil is no log.
func (w *logWriter) to(l *wire.Log) error {
	if l == nil {
		return nil
	}
	f, err := openLog(l)
	if err != nil {
		return err
	}
	return w.use(f)
}

var errNoLog = errors.New("the container has no log, or its output has ended")

// reopen goes on in a new file at the log's path. When that cannot be made, the old one goes on and no file appears.
// So it does when ctx has ended before a slow disk has made the file: who asked may have renamed the old one back.
func (w *logWriter) reopen(ctx context.Context, l *wire.Log) error {
	w.mu.Lock()
	logged := w.logged && !w.over
	w.mu.Unlock()
	if !logged || l == nil {
		return errNoLog
	}
	select {
	case w.opening <- struct{}{}: // one by one, so that the log goes on in the file of the last
		defer func() { <-w.opening }()
	case <-ctx.Done():
		return fmt.Errorf("reopen the log: wait for an earlier reopening: %w", context.Cause(ctx))
	}
	f, err := openLog(l)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		f.close()
		return fmt.Errorf("reopen the log: %w", context.Cause(ctx))
	}
	return w.use(f)
}

// use has what is written from now on go to f. What is being written to the log before it does not delay that.
func (w *logWriter) use(f *logFile) error {
	w.mu.Lock()
	if w.over {
		w.mu.Unlock()
		f.close()
		return errNoLog
	}
	if w.next != nil {
		w.next.close()
	}
	w.next, w.logged = f, true
	w.mu.Unlock()
	w.taken()
	return nil
}

// takeNext makes the next log the log. With writing held.
func (w *logWriter) takeNext() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		return
	}
	if w.file != nil {
		w.next.dropped, w.next.excess = w.file.dropped, w.file.excess
		if w.next.id == w.file.id { // it may have been torn since next was opened
			w.next.torn = w.file.torn
		}
		w.file.close()
	}
	w.file, w.next = w.next, nil
	bound(w, w.file)
}

// takeUp goes on with the log where another monitor was killed. It returns at once: a disk that hangs holds up only
// what needs it.
func (w *logWriter) takeUp(l *wire.Log) {
	if l == nil {
		return
	}
	w.mu.Lock()
	w.logged = true
	w.mu.Unlock()
	w.dirty.Store(true)
	w.writing.Lock()
	go func() {
		defer w.release()
		w.file = takeUpLog(w, l, false)
	}()
}

// bringRest brings the rest of an ended output to its log, and what is to be noticed. It makes no log: one that is not
// there was removed with its container.
func bringRest(w *logWriter, l *wire.Log) {
	w.writing.Lock()
	defer w.release()
	w.file = takeUpLog(w, l, true)
	for _, s := range w.sources[1:] {
		w.bring(s, true)
		lastNotice(w, s)
	}
	w.finish()
}
