package image

import (
	"errors"
	"io"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
)

// blobReader passes a blob through, and counts and digests it. It returns no bytes beyond the promised size.
type blobReader struct {
	r        io.Reader
	desc     ocispec.Descriptor
	sum      digest.Digester // nil if there is no promised digest
	done     int64
	tell     func(done int64)
	rest     *rest // nil if the time for it is not bounded
	ended    bool
	mismatch bool // its size or digest is not the promised one
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
		p = p[:left] // one byte more than promised: enough to detect that the blob is too long
	}
	n, err := b.r.Read(p)
	b.done += int64(n)
	if b.done > b.desc.Size {
		b.mismatch = true
		return 0, fail.New(errdefs.ErrDataLoss, "blob %s has more than the %d bytes promised", b.desc.Digest, b.desc.Size)
	}
	if b.sum != nil {
		b.sum.Hash().Write(p[:n])
	}
	b.tell(b.done)
	if errors.Is(err, io.EOF) {
		b.ended = true
		if b.done < b.desc.Size {
			b.mismatch = true
			return n, fail.New(errdefs.ErrDataLoss, "blob %s ended after %d of the %d bytes promised", b.desc.Digest, b.done,
				b.desc.Size)
		}
	}
	return n, err
}

// prove reads the rest of the blob and compares size and digest with its descriptor.
func (b *blobReader) prove() error {
	if _, err := io.Copy(io.Discard, b); err != nil {
		return err
	}
	if b.sum != nil && b.sum.Digest() != b.desc.Digest {
		b.mismatch = true
		return fail.New(errdefs.ErrDataLoss, "blob has the digest %s, not the %s promised", b.sum.Digest(), b.desc.Digest)
	}
	return nil
}
