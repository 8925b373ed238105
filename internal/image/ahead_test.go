package image

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"
)

func TestReadAhead(t *testing.T) {
	broken := errors.New("the line is dead")
	body := bytes.Repeat([]byte("0123456789"), aheadSize)
	for _, size := range []int{0, 1, aheadSize - 1, aheadSize, aheadSize + 1, len(body)} {
		for _, end := range []error{io.EOF, broken} {
			sum := sha256.New()
			a := readAhead(io.MultiReader(iotest.HalfReader(bytes.NewReader(body[:size])), iotest.ErrReader(end)), sum)
			got, err := io.ReadAll(a)
			if !bytes.Equal(got, body[:size]) || end == broken && !errors.Is(err, broken) || end == io.EOF && err != nil {
				t.Errorf("%d bytes of %d, then %v, want %v", len(got), size, err, end)
			}
			if want := sha256.Sum256(body[:size]); !slices.Equal(sum.Sum(nil), want[:]) {
				t.Errorf("the digest of %d bytes is not theirs", size)
			}
			a.close()
		}
	}
}

// TestReadAheadIsLeft closes streams that were read in part, and one that never ends.
func TestReadAheadIsLeft(t *testing.T) {
	for _, read := range []int{0, 1, aheadSize, 3 * aheadSize} {
		for _, sum := range []io.Writer{nil, sha256.New()} {
			a := readAhead(endless{}, sum)
			if _, err := io.ReadFull(a, make([]byte, read)); err != nil {
				t.Error(err)
			}
			a.close()
			if a.made > aheadMost {
				t.Errorf("%d buffers", a.made)
			}
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
