package stream

import (
	"errors"
	"io"
	"slices"
	"sync"
	"time"
)

// input is what a client has sent to its command, or to a port, and that has not read. Nobody waits for one that does
// not read at all: what it leaves is thrown away. One goroutine writes, and one reads.
type input struct {
	backlog *backlog // of its session

	reading block // the reader's own

	mu      sync.Mutex    // guards what follows
	blocks  []block       // the oldest first; all but the last are full
	taken   bool          // the reader has had some, and has not come back for more
	ended   bool          // no more will come
	unread  bool          // nobody reads any more
	wasCut  bool          // the client has gone in the middle of it
	changed chan struct{} // closed and made anew with each change
}

// block has the place of messageBytes in the room of its session. The zero value is none.
type block struct {
	buf      *[messageBytes]byte
	from, to int // what is to be read of it
}

func newInput(b *backlog) *input { return &input{backlog: b, changed: make(chan struct{})} }

// Write waits until all of p is read or has its place, and throws it away where nobody will read it.
func (i *input) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		p = p[i.put(p):]
	}
	return n, nil
}

// put takes a part of p, or waits for a change.
func (i *input) put(p []byte) int {
	i.mu.Lock()
	n, freed := i.putLocked(p)
	changed := i.changed
	i.mu.Unlock()
	if freed != nil {
		awaitFreed(freed, changed)
	}
	return n
}

// putLocked takes a part of p. Where there is no room it returns what to wait for. i.mu is held.
func (i *input) putLocked(p []byte) (n int, freed <-chan struct{}) {
	if i.ended || i.unread {
		return len(p), nil
	}
	last := len(i.blocks) - 1
	if last < 0 || i.blocks[last].to == messageBytes {
		if freed := i.backlog.take(messageBytes); freed != nil {
			return 0, freed
		}
		i.blocks = append(i.blocks, block{buf: buffers.Get().(*[messageBytes]byte)})
		last++
	}
	b := &i.blocks[last]
	n = copy(b.buf[b.to:], p)
	b.to += n
	i.changeLocked()
	return n, nil
}

// errCut is the end of an input whose client has gone in the middle of it.
var errCut = errors.New("the client has gone")

// Read waits for what the client sends, or the end of it.
func (i *input) Read(p []byte) (int, error) {
	data, err := i.next()
	n := copy(p, data)
	i.reading.from += n
	return n, err
}

// next waits for what is to be read next.
func (i *input) next() ([]byte, error) {
	if i.reading.from == i.reading.to {
		if err := i.turn(); err != nil {
			return nil, err
		}
	}
	return i.reading.buf[i.reading.from:i.reading.to], nil
}

// turn gives back the block that was read, and waits for the next.
func (i *input) turn() error {
	i.free(i.reading)
	i.reading = block{}
	for {
		changed, err := i.turnLocked()
		if changed == nil {
			return err
		}
		<-changed
	}
}

// turnLocked takes the next block. Where there is none it returns what to wait for.
func (i *input) turnLocked() (changed <-chan struct{}, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.taken {
		i.taken = false
		i.changeLocked()
	}
	switch {
	case i.wasCut:
		return nil, errCut
	case i.unread, i.ended && len(i.blocks) == 0:
		return nil, io.EOF
	case len(i.blocks) == 0:
		return i.changed, nil
	}
	i.reading, i.taken = i.blocks[0], true
	i.blocks = slices.Delete(i.blocks, 0, 1) // and nothing stays of it
	return nil, nil
}

// free gives back what a block takes of the room.
func (i *input) free(b block) {
	if b.buf != nil {
		buffers.Put(b.buf)
		i.backlog.give(messageBytes)
	}
}

// WriteTo copies until the client's input ends. io.Copy calls it, so that a command that takes no more is noticed: from
// then on all is thrown away, and the client is not held up.
func (i *input) WriteTo(w io.Writer) (n int64, err error) {
	for {
		data, err := i.next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		written, err := w.Write(data)
		n += int64(written)
		i.reading.from = i.reading.to
		if err != nil {
			i.abandon()
			return n, err
		}
	}
}

// finish says that no more will come. It may be repeated.
func (i *input) finish() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	i.changeLocked()
}

// abandon throws away what is there and whatever comes. It may be repeated.
func (i *input) abandon() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.throwLocked()
}

// cut is abandon of which the reader learns that this was not all.
func (i *input) cut() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.wasCut = true
	i.throwLocked()
}

func (i *input) throwLocked() {
	for _, b := range i.blocks {
		i.free(b)
	}
	i.unread, i.blocks = true, nil
	i.changeLocked()
}

// awaitRead returns when all that has come was read, or after that time.
func (i *input) awaitRead(most time.Duration) {
	late := time.NewTimer(most)
	defer late.Stop()
	for {
		i.mu.Lock()
		read, changed := i.unread || len(i.blocks) == 0 && !i.taken, i.changed
		i.mu.Unlock()
		if read {
			return
		}
		select {
		case <-changed:
		case <-late.C:
			return
		}
	}
}

func (i *input) changeLocked() {
	close(i.changed)
	i.changed = make(chan struct{})
}
