package monitor

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// window is the part of a journal that a stream is taken into. Who reads the stream takes; whoever writes the log reads
// what was taken. It is at the beginning of the window again when all of it is in the log.
type window struct {
	j      *journal
	i      int   // the stream's index in the head
	end    int64 // up to where it is there
	side   uint64
	copied bool // the stream is no pipe, or the file takes nothing of pipes: it is read, and one read may be lost

	taken atomic.Int64 // the head's, as this process has seen it
	done  atomic.Int64 // the note's
}

// open starts with the content of the journal.
func (w *window) open(j *journal, stream int) {
	w.j, w.i, w.copied = j, stream-1, j.fd < 0
	n := j.note()
	w.side = n.side[w.i]
	w.done.Store(n.done[w.i])
	w.taken.Store(j.head.taken[w.i][w.side])
	w.end = max(windowPage(w.i), (w.taken.Load()+page-1)&^(page-1))
	if j.fd < 0 {
		w.end = windowEnd(w.i)
	}
}

// A window begins, has its first page, and ends.
func windowStart(i int) int64 {
	if i == 0 {
		return headSize
	}
	return int64(i) * windowSize
}

func windowPage(i int) int64 { return int64(i)*windowSize + page }

func windowEnd(i int) int64 { return int64(i+1) * windowSize }

// free returns how much can be read into the window.
func (w *window) free() int64 { return w.end - w.taken.Load() }

// scarce reports whether less than half of the window is free.
func (w *window) scarce() bool { return w.free() < (w.end-windowStart(w.i))/2 }

// left returns how much was read that is not in the log.
func (w *window) left() int64 { return w.taken.Load() - w.done.Load() }

// take moves what a stream has into the window, and returns it. Of a pipe it is taken and noted in one call of the
// kernel: a process that is killed has done both or nothing.
func (w *window) take(fd int) (piece []byte, err error) {
	at := w.taken.Load()
	off := &w.j.head.taken[w.i][w.side]
	var n int64
	if !w.copied {
		n, err = unix.Splice(fd, nil, w.j.fd, off, int(w.free()), unix.SPLICE_F_NONBLOCK)
		w.copied = err == unix.EINVAL
	}
	if w.copied {
		var got int
		got, err = unix.Read(fd, w.j.mem[at:at+w.free()])
		if n = int64(got); n > 0 {
			atomic.StoreInt64(off, at+n)
		}
	}
	if n <= 0 {
		return nil, err
	}
	_ = fault.At("monitor.log.taken")
	w.taken.Store(at + n)
	return w.j.mem[at : at+n], nil
}

// rebase moves what is left to the window's beginning, unless it would overwrite itself. It says whether there is any
// room afterwards. With the output's writing held, by who takes.
func (w *window) rebase() bool {
	start, left, done := windowStart(w.i), w.left(), w.done.Load()
	if left <= done-start && done > start {
		copy(w.j.mem[start:], w.j.mem[done:done+left])
		w.side ^= 1
		w.j.head.taken[w.i][w.side] = start + left
		_ = fault.At("monitor.log.rebased")
		n := *w.j.note()
		n.side[w.i], n.done[w.i] = w.side, start
		w.j.set(&n)
		w.done.Store(start)
		w.taken.Store(start + left)
	}
	return w.free() > 0
}

// grow has the whole window be there, and says whether it was not.
func (w *window) grow() bool {
	end := windowEnd(w.i)
	if w.end == end || fallocate(w.j.fd, 0, w.end, end-w.end) != nil {
		return false
	}
	w.end = end
	return true
}

// shrink gives back all but the first page, and says whether it is no more, which needs the window to be empty.
func (w *window) shrink() bool {
	if w.left() > 0 {
		return false
	}
	w.rebase()
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	first := windowPage(w.i)
	if w.j.fd >= 0 && fallocate(w.j.fd, punch, first, windowEnd(w.i)-first) == nil {
		w.end = first
	}
	return true
}
