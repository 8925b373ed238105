package monitor

import (
	"bytes"
	"time"
)

// maxLine is how much of a line, in bytes, goes into one entry of the log; a longer line is written in parts, all but the
// last tagged P. Kubelets and agents expect this size.
const maxLine = 16 << 10

// maxHead bounds what stands in an entry before the content: time, stream and tag.
const maxHead = 64

// partTime is how long the beginning of a line waits for its end before it is written as a part.
const partTime = 250 * time.Millisecond

// batch collects entries, and writes them to the log when its buffer is full.
type batch struct {
	log *logFile
	buf []byte
}

func (b *batch) add(at time.Time, n int, tag byte, parts ...[]byte) {
	size := maxHead
	for _, p := range parts {
		size += len(p)
	}
	if len(b.buf)+size > cap(b.buf) {
		b.write()
	}
	b.buf = appendEntry(b.buf, at, n, tag, parts...)
}

func (b *batch) write() {
	b.log.write(b.buf)
	b.buf = b.buf[:0]
}

// log writes the entries that a piece of a stream completes; the rest waits for the end of its line.
func (s *stream) log(b batch, piece []byte, at time.Time) {
	for len(piece) > 0 {
		i := bytes.IndexByte(piece, '\n')
		room := maxLine - len(s.pending)
		tag, take, skip := byte('F'), i, 1
		if i < 0 || i > room {
			if i < 0 && len(piece) < room {
				if len(s.pending) == 0 {
					s.since = at
				}
				s.pending = append(s.pending, piece...)
				break
			}
			tag, take, skip = 'P', room, 0
		}
		b.add(at, s.n, tag, s.pending, piece[:take])
		s.pending, piece = s.pending[:0], piece[take+skip:]
	}
	b.write()
}

// flush writes what is pending, as a part of a line.
func (s *stream) flush(l *logFile) {
	if l != nil && len(s.pending) > 0 {
		l.write(appendEntry(nil, time.Now(), s.n, 'P', s.pending))
	}
	s.pending = s.pending[:0]
}

// arm sees to it that what is pending does not wait for ever: a prompt has no end. With writing held.
func (o *output) arm(s *stream, d time.Duration) {
	if len(s.pending) == 0 || s.armed {
		return
	}
	s.armed = true
	if s.timer == nil {
		s.timer = time.AfterFunc(d, func() { o.late(s) })
	} else {
		s.timer.Reset(d)
	}
}

// late writes what has been pending for long enough.
func (o *output) late(s *stream) {
	o.writing.Lock()
	s.armed = false
	if rest := partTime - time.Since(s.since); rest > 0 {
		o.arm(s, rest)
	} else {
		s.flush(o.log)
	}
	o.writing.Unlock()
	o.swap()
}

// appendEntry appends one entry in CRI's format: <time> <stream> <P or F> <content>.
func appendEntry(dst []byte, at time.Time, n int, tag byte, parts ...[]byte) []byte {
	dst = at.AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, ' ')
	dst = append(dst, streamNames[n]...)
	dst = append(dst, ' ', tag, ' ')
	for _, p := range parts {
		dst = append(dst, p...)
	}
	return append(dst, '\n')
}
