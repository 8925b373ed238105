// Package tail keeps the last bytes of a stream from its reader. It is apart from package inflate because the program
// that unpacks layers has it too, and must be small.
package tail

import "io"

// Reader reads a stream but for its last bytes.
type Reader struct {
	r    io.Reader
	n    int
	held []byte
	few  []byte // read for a caller that has little room
	err  error
}

// New reads r but for its last n bytes.
func New(r io.Reader, n int) *Reader { return &Reader{r: r, n: n} }

// Held returns the last bytes, once Read has returned an error: fewer where the stream had fewer.
func (t *Reader) Held() []byte { return t.held }

func (t *Reader) Read(p []byte) (int, error) {
	if len(t.few) > 0 {
		n := copy(p, t.few)
		t.few = t.few[n:]
		return n, nil
	}
	if len(p) <= t.n {
		buf := make([]byte, 4<<10+t.n)
		n, err := t.pass(buf)
		if t.few = buf[:n]; n == 0 {
			return 0, err
		}
		return t.Read(p)
	}
	return t.pass(p)
}

// pass reads into p, which has more room than what is held back takes: what was held before, and what follows, but for
// as many bytes as are to be held then.
func (t *Reader) pass(p []byte) (int, error) {
	for t.err == nil {
		before := copy(p, t.held)
		n, err := t.r.Read(p[before:])
		t.err = err
		n += before
		free := max(0, n-t.n)
		t.held = append(t.held[:0], p[free:n]...)
		if free > 0 {
			return free, nil
		}
	}
	return 0, t.err
}
