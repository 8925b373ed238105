package stream

import (
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/limit"
)

// ownBytes is what each session may keep of what its client sends, however much others keep. It is enough to go on: who
// finds no room waits for its own reader, which has something to read then.
const ownBytes = 64 << 10

// retryTime is how often it is looked for room that other sessions have left.
const retryTime = time.Second

// backlogs counts what all sessions keep beyond their own. The zero value is ready.
type backlogs struct{ used atomic.Int64 }

// take reports whether there was room for n bytes.
func (b *backlogs) take(n int64) bool {
	for {
		used := b.used.Load()
		if used+n > limit.SessionInputs.Limit {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

func (b *backlogs) give(n int64) { b.used.Add(-n) }

// backlog is what one session keeps of what its client sends and nobody has read.
type backlog struct {
	of *backlogs

	mu     sync.Mutex // guards what follows
	used   int64
	freed  chan struct{} // is closed when something was given back; nil where nobody waits for that
	closed bool
}

// take takes n bytes and returns nil. Where there is no room for them it returns what awaitFreed waits for.
func (b *backlog) take(n int64) (freed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	if b.used+n <= limit.SessionInput.Limit && b.of.take(beyond(b.used+n)-beyond(b.used)) {
		b.used += n
		return nil
	}
	if b.freed == nil {
		b.freed = make(chan struct{})
	}
	return b.freed
}

// give gives n bytes back.
func (b *backlog) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.giveLocked(n)
}

func (b *backlog) giveLocked(n int64) {
	b.of.give(beyond(b.used) - beyond(b.used-n))
	b.used -= n
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

// close gives all back, and has nobody wait any more: the session has ended. What readers that it has left give back
// late does not count. It may be repeated.
func (b *backlog) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.giveLocked(b.used)
	b.closed = true
}

// awaitFreed waits until there may be room again, or for another change.
func awaitFreed(freed, changed <-chan struct{}) {
	late := time.NewTimer(retryTime)
	defer late.Stop()
	select {
	case <-freed:
	case <-changed:
	case <-late.C:
	}
}

// beyond is how much of what a session has is not its own.
func beyond(n int64) int64 { return max(0, n-ownBytes) }
