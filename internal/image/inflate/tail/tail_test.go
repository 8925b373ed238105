package tail

import (
	"bytes"
	"crypto/rand"
	"io"
	"testing"
	"testing/iotest"
)

// TestTail reads streams of all lengths, by readers that give much or little at a time, and compares what is read and
// what is held back.
func TestTail(t *testing.T) {
	for _, n := range []int{0, 1, 32} {
		for _, size := range []int{0, 1, 31, 32, 33, 64, 1000, 10_000} {
			whole := make([]byte, size)
			_, _ = rand.Read(whole)
			cut := max(0, size-n)
			for name, wrap := range map[string]func(io.Reader) io.Reader{
				"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader,
				"with its end": iotest.DataErrReader,
			} {
				r := New(wrap(bytes.NewReader(whole)), n)
				if err := iotest.TestReader(r, whole[:cut]); err != nil || !bytes.Equal(r.Held(), whole[cut:]) {
					t.Errorf("%d bytes of %d, %s: held %x, %v", n, size, name, r.Held(), err)
				}
			}
		}
	}
}
