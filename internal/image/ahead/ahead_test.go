package ahead

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"
	"time"

	"berth/test/timeouts"
)

func TestReadAhead(t *testing.T) {
	broken := errors.New("the line is dead")
	body := bytes.Repeat([]byte("0123456789"), bufferSize)
	for _, size := range []int{0, 1, bufferSize - 1, bufferSize, bufferSize + 1, len(body)} {
		for _, end := range []error{io.EOF, broken} {
			sum := sha256.New()
			a := Read(io.MultiReader(iotest.HalfReader(bytes.NewReader(body[:size])), iotest.ErrReader(end)), sum)
			got, err := io.ReadAll(a)
			if !bytes.Equal(got, body[:size]) || end == broken && !errors.Is(err, broken) || end == io.EOF && err != nil {
				t.Errorf("%d bytes of %d, then %v, want %v", len(got), size, err, end)
			}
			if want := sha256.Sum256(body[:size]); !slices.Equal(sum.Sum(nil), want[:]) {
				t.Errorf("the digest of %d bytes is not theirs", size)
			}
			a.Close()
		}
	}
}

// TestReadAheadIsLeft closes streams that were read in part, and one that never ends.
func TestReadAheadIsLeft(t *testing.T) {
	for _, read := range []int{0, 1, bufferSize, 3 * bufferSize} {
		for _, sum := range []io.Writer{nil, sha256.New()} {
			a := Read(endless{}, sum)
			if _, err := io.ReadFull(a, make([]byte, read)); err != nil {
				t.Error(err)
			}
			a.Close()
			if a.made > mostBuffers {
				t.Errorf("%d buffers", a.made)
			}
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestCloseWaitsForOneRead closes a stream whose source sends a little at a time.
func TestCloseWaitsForOneRead(t *testing.T) {
	one := make(chan struct{})
	a := Read(drip(one), nil)
	one <- struct{}{}
	a.End()
	one <- struct{}{} // the read that was under way
	closed := make(chan struct{})
	go func() { a.Close(); close(closed) }()
	select {
	case <-closed:
	case one <- struct{}{}:
		t.Error("it is read on after its end")
	case <-time.After(timeouts.For(10 * time.Second)):
		t.Error("it is not closed")
	}
}

// drip has a byte for each element.
type drip chan struct{}

func (d drip) Read(p []byte) (int, error) {
	if _, ok := <-d; !ok {
		return 0, errors.New("over")
	}
	return 1, nil
}
