package image

import (
	"context"
	"errors"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// blobReader passes a blob through while it counts and digests it. It never returns more than the blob should have.
type blobReader struct {
	r     io.Reader
	desc  ocispec.Descriptor
	sum   digest.Digester // nil when nothing was promised
	done  int64
	tell  func(done int64)
	ended bool
	lied  bool // it is not what was promised
}

func newBlobReader(r io.Reader, desc ocispec.Descriptor, tell func(int64)) *blobReader {
	b := &blobReader{r: r, desc: desc, tell: tell}
	if desc.Digest != "" {
		b.sum = desc.Digest.Algorithm().Digester()
	}
	return b
}

func (b *blobReader) Read(p []byte) (int, error) {
	if b.ended {
		return 0, io.EOF
	}
	if left := b.desc.Size - b.done + 1; int64(len(p)) > left {
		p = p[:left] // one more than promised shows the lie
	}
	n, err := b.r.Read(p)
	b.done += int64(n)
	if b.done > b.desc.Size {
		b.lied = true
		return 0, errorf(DataLoss, "blob %s has more than the %d bytes promised", b.desc.Digest, b.desc.Size)
	}
	if b.sum != nil {
		b.sum.Hash().Write(p[:n])
	}
	b.tell(b.done)
	if errors.Is(err, io.EOF) {
		b.ended = true
		if b.done < b.desc.Size {
			b.lied = true
			return n, errorf(DataLoss, "blob %s ended after %d of the %d bytes promised", b.desc.Digest, b.done, b.desc.Size)
		}
	}
	return n, err
}

// prove reads what is left and says whether the blob is what its descriptor promised.
func (b *blobReader) prove() error {
	if _, err := io.Copy(io.Discard, b); err != nil {
		return err
	}
	if b.sum != nil && b.sum.Digest() != b.desc.Digest {
		b.lied = true
		return errorf(DataLoss, "blob has the digest %s, not the %s promised", b.sum.Digest(), b.desc.Digest)
	}
	return nil
}

// ahead reads and digests a stream in a goroutine of its own, a few buffers before its reader: inflating and unpacking
// then use a core each.
type ahead struct {
	full, free chan []byte
	now        []byte
	rest       []byte
	err        error // set before full is closed
	stop       context.CancelFunc
	sum        digest.Digester // whole when Read has returned io.EOF
}

const (
	aheadBuffers = 4
	aheadSize    = 256 << 10
)

func readAhead(r io.Reader, algorithm digest.Algorithm) *ahead {
	ctx, stop := context.WithCancel(context.Background())
	a := &ahead{full: make(chan []byte, aheadBuffers), free: make(chan []byte, aheadBuffers), stop: stop, sum: algorithm.Digester()}
	for range aheadBuffers {
		a.free <- make([]byte, aheadSize)
	}
	go a.run(ctx, r)
	return a
}

func (a *ahead) run(ctx context.Context, r io.Reader) {
	defer close(a.full)
	for {
		var buf []byte
		select {
		case buf = <-a.free:
		case <-ctx.Done():
			a.err = ctx.Err()
			return
		}
		n, err := fill(r, buf[:aheadSize])
		a.sum.Hash().Write(buf[:n])
		if n > 0 {
			a.full <- buf[:n] // never blocks: there are as many places as buffers
		}
		if err != nil {
			a.err = err
			return
		}
	}
}

// fill is io.ReadFull that keeps the reader's own error: a stream that broke off must not look like one that ended.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

func (a *ahead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.now != nil {
			a.free <- a.now
			a.now = nil
		}
		buf, ok := <-a.full
		if !ok {
			if a.err == nil {
				return 0, io.EOF
			}
			return 0, a.err
		}
		a.now, a.rest = buf, buf
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// close ends the goroutine; whoever closes has made sure that its reader does not block.
func (a *ahead) close() {
	a.stop()
	for range a.full {
	}
}
