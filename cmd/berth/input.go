package main

import (
	"errors"
	"io"
	"sync"

	"berth/internal/admin"
)

// input takes what the client says until it says no more.
func input(recv func() (*admin.AttachInput, error), to *typeahead, resize func(admin.Size)) {
	for {
		in, err := recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				to.end(err) // gone, which is not the end of the input
			}
			return
		}
		switch {
		case in.Resize != nil:
			resize(*in.Resize)
		case in.CloseStdin:
			to.end(io.EOF)
		default:
			to.write(in.Stdin)
		}
	}
}

// mostAhead is how much of a client's input waits for a command that does not read, before what the client says next
// has to.
const mostAhead = 64 << 10

// typeahead is what a client has typed and the command has not read yet. What comes behind it, such as the size of a
// terminal, does not wait for that.
type typeahead struct {
	mu      sync.Mutex // guards what follows
	changed *sync.Cond
	text    []byte
	ended   error // for who reads it, after the text
	closed  bool  // it will not be read
}

func newTypeahead() *typeahead {
	t := &typeahead{}
	t.changed = sync.NewCond(&t.mu)
	return t
}

// write adds to it. It waits while there is more than mostAhead.
func (t *typeahead) write(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.text) > mostAhead && !t.closed {
		t.changed.Wait()
	}
	if !t.closed && t.ended == nil {
		t.text = append(t.text, p...)
		t.changed.Broadcast()
	}
}

// end says that no more comes, and why. Who reads has the text first where that is the end of the input, and not where
// the client is gone.
func (t *typeahead) end(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended == nil {
		t.ended = why
	}
	t.changed.Broadcast()
}

// Read waits for what was typed.
func (t *typeahead) Read(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.text) == 0 && t.ended == nil && !t.closed {
		t.changed.Wait()
	}
	switch {
	case t.closed:
		return 0, io.ErrClosedPipe
	case t.ended != nil && (len(t.text) == 0 || t.ended != io.EOF):
		return 0, t.ended
	}
	n := copy(p, t.text)
	if t.text = t.text[n:]; len(t.text) == 0 {
		t.text = nil
	}
	t.changed.Broadcast()
	return n, nil
}

// Close lets go of the text, and of those who wait.
func (t *typeahead) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed, t.text = true, nil
	t.changed.Broadcast()
	return nil
}
