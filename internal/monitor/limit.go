package monitor

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"time"

	"berth/internal/fault"
	"berth/internal/monitor/wire"
)

// leastRate and leastBurst are the least that a log's limit can be, in bytes: an entry that is as long as any fits into
// the burst.
const leastRate, leastBurst = 1 << 10, 2 * maxLine

// tellPause is the least time between two messages to the daemon about what was dropped of a log, but for the one at
// the log's end.
const tellPause = 10 * time.Second

// excess is what was dropped because of the log's rate and has no notice in the log yet. It is part of the journal.
type excess struct {
	wire.Dropped
	all  wire.Dropped // since the container began
	open [2]bool      // by stream: the log has the beginning of a line whose end it does not have
	cut  [2]bool      // by stream: of a line whose beginning the log has, the rest was dropped
	skip [2]bool      // by stream: the beginning of a line was dropped, and so will be its end
}

// total is excess.all for those who do not hold writing.
type total struct{ lines, bytes atomic.Int64 }

func (t *total) set(d wire.Dropped) {
	t.lines.Store(d.Lines)
	t.bytes.Store(d.Bytes)
}

// read is nil where nothing was dropped.
func (t *total) read() *wire.Dropped {
	if t.bytes.Load() == 0 {
		return nil
	}
	return &wire.Dropped{Lines: t.lines.Load(), Bytes: t.bytes.Load()}
}

// bucket is what a limit has left, as of a time in nanoseconds since 1970. It is part of the journal: to end a monitor
// fills no bucket.
type bucket struct{ tokens, at int64 }

// limit bounds what is written to a log, by a token bucket. Its fields are guarded by the output's writing.
type limit struct {
	rate, burst int64 // bytes a second, and at once
	tokens      int64
	at          time.Time // when tokens was counted
	dropping    bool      // until there are tokens for a while
	untold      bool      // the daemon does not know yet what was dropped last
	saidAt      time.Time
	timer       *time.Timer
	armed       bool
}

// bound has what is written to the log be limited as it says. With writing held.
func bound(w *logWriter, f *logFile) {
	switch {
	case w.limit != nil: // as it was at the start
		f.rate = w.limit.rate
	case f.rate > 0 && w.journal != nil:
		w.limit = newLimit(f.rate, f.burst, w.journal.note().bucket)
		f.rate = w.limit.rate
		all := w.journal.note().excess.all
		w.total.set(all)
		w.limit.untold = all.Bytes > 0 // by this monitor
		lookLater(w, w.limit.quantum())
	}
}

// newLimit makes a limit whose bucket is full, or as another monitor has left it.
func newLimit(rate, burst int64, left bucket) *limit {
	l := &limit{rate: max(rate, leastRate), at: time.Now()}
	l.burst = max(burst, leastBurst)
	l.tokens = l.burst
	if left.at != 0 {
		l.tokens, l.at = min(left.tokens, l.burst), time.Unix(0, left.at)
	}
	return l
}

// refill adds what has come to the bucket since it was last done.
func (l *limit) refill(at time.Time) {
	gone := at.Sub(l.at)
	if gone < 0 { // a clock was set
		l.at = at
		return
	}
	if gone > time.Duration(l.burst/l.rate+1)*time.Second {
		l.tokens, l.at = l.burst, at
		return
	}
	if more := int64(gone.Seconds() * float64(l.rate)); more > 0 { // else it is counted with what comes next
		l.tokens = min(l.tokens+more, l.burst)
		l.at = l.at.Add(time.Duration(float64(more) / float64(l.rate) * 1e9))
	}
}

// enough is how many tokens there have to be before dropping ends: what comes in a second, or half of the bucket. So a
// log has stretches without gaps, and not a notice for each line.
func (l *limit) enough() int64 { return min(l.rate, l.burst/2) }

// quantum is how long it takes until there are enough.
func (l *limit) quantum() time.Duration {
	return time.Duration(float64(max(0, l.enough()-l.tokens))/float64(l.rate)*1e9) + 10*time.Millisecond
}

// allows is how many of so many bytes may be written now.
func (l *limit) allows(most int64) int { return int(max(0, min(l.tokens, most))) }

// spend takes tokens for so many bytes. A notice may cost more than there are.
func (l *limit) spend(n int) bucket {
	l.tokens -= int64(n)
	return bucket{l.tokens, l.at.UnixNano()}
}

func (l *limit) stop() {
	if l != nil && l.timer != nil {
		l.timer.Stop()
	}
}

// ready is how much of what was taken of a stream could go into the log: whole lines, and the beginning of one that is
// to be flushed or is longer than an entry.
func ready(piece []byte, flush bool) int {
	n := bytes.LastIndexByte(piece, '\n') + 1
	if flush || n == 0 && len(piece) > maxLine {
		n = len(piece)
	}
	return n
}

// excessOf is how much of what was taken of a stream is to be dropped now. With writing held.
func excessOf(w *logWriter, s *source, piece []byte, at time.Time, flush bool) int {
	l := w.limit
	l.refill(at)
	if w.file.excess.skip[s.i] {
		if n := bytes.IndexByte(piece, '\n') + 1; n > 0 {
			return n
		}
		return len(piece)
	}
	if l.dropping = l.dropping && l.tokens < l.enough(); l.dropping {
		return ready(piece, flush)
	}
	return 0
}

// drop notes that the next n bytes of a stream are not to be in the log. With writing held.
func drop(w *logWriter, s *source, n int, at time.Time) {
	done := s.done.Load()
	piece := w.journal.mem[done : done+int64(n)]
	now, x := *w.journal.note(), &w.file.excess
	x.add(int64(bytes.Count(piece, []byte{'\n'})), int64(n))
	x.skip[s.i] = piece[n-1] != '\n'
	if x.open[s.i] {
		x.open[s.i], x.cut[s.i] = false, true
	}
	now.excess, now.bucket = *x, bucket{w.limit.tokens, w.limit.at.UnixNano()}
	now.done[s.i] = done + int64(n)
	w.journal.set(&now)
	s.done.Store(done + int64(n))
	_ = fault.At("monitor.log.excess")
	afterDrop(w, at)
}

// add counts what was dropped.
func (x *excess) add(lines, bytes int64) {
	for _, d := range []*wire.Dropped{&x.Dropped, &x.all} {
		d.Lines += lines
		d.Bytes += bytes
	}
}

// afterDrop sees to it that the daemon is told of what was dropped, at once or in a while, and the log, too.
func afterDrop(w *logWriter, at time.Time) {
	w.total.set(w.file.excess.all)
	w.limit.untold = true
	if at.Sub(w.limit.saidAt) >= tellPause {
		tellDropped(w, at)
	}
	lookLater(w, w.limit.quantum())
}

// tellDropped tells the daemon. With writing held.
func tellDropped(w *logWriter, at time.Time) {
	w.limit.untold, w.limit.saidAt = false, at
	w.m.subscribers.publish(&wire.Reply{Container: w.ctr, Dropped: w.total.read()})
}

// lookLater looks again at what was dropped. With writing held.
func lookLater(w *logWriter, d time.Duration) {
	l := w.limit
	if l.armed {
		return
	}
	l.armed = true
	if l.timer == nil {
		l.timer = time.AfterFunc(d, func() { lookAtDropped(w) })
	} else {
		l.timer.Reset(d)
	}
}

// bringNotice writes the notice of what was dropped, before any entries. With writing held.
func bringNotice(w *logWriter, at time.Time) {
	if w.file.excess.Lines > 0 {
		commitNotice(w, at)
	}
}

// lastNotice writes the notice at the end of a stream, whatever it costs, and tells the daemon. With writing held.
func lastNotice(w *logWriter, s *source) {
	if w.limit == nil || w.journal == nil || w.file == nil {
		return
	}
	at, x := time.Now(), &w.file.excess
	if x.skip[s.i] { // a line that had no end
		n := *w.journal.note()
		x.add(1, 0)
		x.skip[s.i] = false
		n.excess = *x
		w.journal.set(&n)
		afterDrop(w, at)
	}
	bringNotice(w, at)
	if w.limit.untold {
		tellDropped(w, at)
	}
}

// notice appends what the log says of it: the ends of lines whose rest was dropped, and how much was dropped.
func (x *excess) notice(dst []byte, at time.Time, rate int64) []byte {
	for i, cut := range x.cut {
		if cut {
			dst = appendEntry(dst, appendHead(nil, at, i+1), 'F', nil)
		}
	}
	text := fmt.Sprintf("[berth: %d lines (%d bytes) were dropped: the log is limited to %d bytes a second]", x.Lines,
		x.Bytes, rate)
	return appendEntry(dst, appendHead(nil, at, 2), 'F', []byte(text))
}

// noticed forgets what the log has told by now.
func (x *excess) noticed() {
	if x.Lines > 0 {
		x.Dropped, x.cut = wire.Dropped{}, [2]bool{}
	}
}
