package stream

import (
	"errors"
	"io"
	"sync"
	"time"

	"berth/internal/limit"
)

// input is what a client has sent to its command, or to a port, and that has not read. Nobody waits for one that does
// not read at all: what it leaves is thrown away.
type input struct {
	mu      sync.Mutex // guards what follows
	data    []byte
	taken   bool          // the reader has had some, and has not come back for more
	ended   bool          // no more will come
	unread  bool          // nobody reads any more
	wasCut  bool          // the client has gone in the middle of it
	changed chan struct{} // closed and made anew with each change
}

func newInput() *input { return &input{changed: make(chan struct{})} }

// keptBytes is how large a buffer is kept for what comes next.
const keptBytes = 32 << 10

// Write waits until all of p is read or has its place in the buffer, and throws it away where nobody will read it.
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
	free := int(limit.CommandInput.Limit) - len(i.data)
	if i.ended || i.unread {
		free = len(p)
	} else if free > 0 {
		p = p[:min(len(p), free)]
		i.data = append(i.data, p...)
		i.changeLocked()
	}
	changed := i.changed
	i.mu.Unlock()
	if free <= 0 {
		<-changed
		return 0
	}
	return len(p)
}

// errCut is the end of an input whose client has gone in the middle of it.
var errCut = errors.New("the client has gone")

// Read waits for what the client sends, or the end of it.
func (i *input) Read(p []byte) (int, error) {
	for {
		n, changed, err := i.get(p)
		if changed == nil {
			return n, err
		}
		<-changed
	}
}

// get reads what there is. Where there is nothing it returns what to wait for.
func (i *input) get(p []byte) (n int, changed <-chan struct{}, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.taken {
		i.taken = false
		i.changeLocked()
	}
	switch {
	case i.wasCut:
		return 0, nil, errCut
	case i.unread, i.ended && len(i.data) == 0:
		return 0, nil, io.EOF
	case len(i.data) == 0:
		return 0, i.changed, nil
	}
	n = copy(p, i.data)
	if i.data = i.data[n:]; len(i.data) == 0 && cap(i.data) > keptBytes {
		i.data = nil
	}
	i.taken = n > 0
	i.changeLocked()
	return n, nil, nil
}

// WriteTo copies until the client's input ends. io.Copy calls it, so that a command that takes no more is noticed: from
// then on all is thrown away, and the client is not held up.
func (i *input) WriteTo(w io.Writer) (n int64, err error) {
	buf := buffers.Get().(*[messageBytes]byte)
	defer buffers.Put(buf)
	for {
		read, err := i.Read(buf[:])
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		written, err := w.Write(buf[:read])
		n += int64(written)
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
	i.unread, i.data = true, nil
	i.changeLocked()
}

// cut throws away what is there, and has the reader know that this was not all. It may be repeated.
func (i *input) cut() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.unread, i.wasCut, i.data = true, true, nil
	i.changeLocked()
}

// awaitRead returns when all that has come was read, or after that time.
func (i *input) awaitRead(most time.Duration) {
	late := time.NewTimer(most)
	defer late.Stop()
	for {
		i.mu.Lock()
		read, changed := i.unread || len(i.data) == 0 && !i.taken, i.changed
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
