package image

import (
	"context"
	"io"
	"sync"
	"time"
)

// turns bounds the number of unpackers that begin at the same time by the number of processors. More would not finish
// sooner, and each takes memory. A layer that begins later often finds an idle process, which saves the start of one.
type turns struct {
	places chan struct{}
	// length is how long a turn lasts, and how long a layer waits for one. So a layer that takes long, perhaps by
	// design of its image, does not hold up others.
	length time.Duration
	// host is the duration of a read of the blob from which on the unpacker counts as waiting for its host, not for a
	// processor.
	host time.Duration
}

func newTurns(places int) *turns {
	return &turns{make(chan struct{}, places), 500 * time.Millisecond, 20 * time.Millisecond}
}

// begin waits for a turn. The turn lasts until a read of the blob waits for the host, or end is called. The caller
// reads the blob through turned.
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

// turnReader ends a turn when a read takes long.
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
