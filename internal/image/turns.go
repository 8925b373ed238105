package image

import (
	"context"
	"io"
	"sync"
	"time"
)

// turns lets as many unpackers begin as there are processors. More of them would not finish sooner, and each takes
// memory. A layer that begins later often finds an idle process, which saves the start of another one.
type turns struct {
	places chan struct{}
	// length is how long a turn lasts, and how long one is waited for: a layer that takes long, as its image may want it
	// to, holds up no other one.
	length time.Duration
	// host is how long a read of the blob takes from which an unpacker waits for its host, and for no processor.
	host time.Duration
}

func newTurns(places int) *turns {
	return &turns{make(chan struct{}, places), 500 * time.Millisecond, 20 * time.Millisecond}
}

// begin waits for a turn. It lasts until the blob is waited for, or end is called. The blob is read through the result.
func (t *turns) begin(ctx context.Context, blob io.Reader) (turned io.Reader, end func()) {
	patience := time.NewTimer(t.length)
	defer patience.Stop()
	select {
	case t.places <- struct{}{}:
	case <-patience.C:
		return blob, func() {}
	case <-ctx.Done():
		return blob, func() {}
	}
	leave := sync.OnceFunc(func() { <-t.places })
	over := time.AfterFunc(t.length, leave)
	waiting := time.AfterFunc(t.host, leave)
	waiting.Stop()
	return &turnReader{blob, waiting, t.host}, func() {
		over.Stop()
		waiting.Stop()
		leave()
	}
}

// turnReader ends a turn by a timer when a read takes long.
type turnReader struct {
	blob    io.Reader
	waiting *time.Timer
	host    time.Duration
}

func (r *turnReader) Read(p []byte) (int, error) {
	r.waiting.Reset(r.host)
	n, err := r.blob.Read(p)
	r.waiting.Stop()
	return n, err
}
