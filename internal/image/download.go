package image

import (
	"context"
	"io"
	"sync/atomic"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/slots"
)

// beginDownload waits for a slot for a download from src. The caller goes on with the returned context and source,
// whose content is read at the pace that the slots allow, and calls done at the end. What is read from a registry is
// added to fetched.
func beginDownload(
	ctx context.Context, pool *slots.Pool, src source, fetched *atomic.Uint64,
) (begun context.Context, paced source, done func(), err error) {
	t := pool.Transfer(hostOf(src))
	if begun, err = t.Begin(ctx); err != nil {
		return nil, nil, nil, err
	}
	if hostOf(src) == "" {
		fetched = nil
	}
	return begun, pacedSource{src, t, fetched, false}, t.End, nil
}

// hostOf returns the registry host whose slots a source uses. All archives together count as one host.
func hostOf(src source) string {
	if r, ok := src.(registry); ok {
		return r.host
	}
	return ""
}

// pacedSource is a source that one transfer reads.
type pacedSource struct {
	source
	transfer *slots.Transfer
	fetched  *atomic.Uint64 // bytes; nil counts none
	whole    bool           // all content has to be on the disk before it is used
}

func (s pacedSource) open(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	s.transfer.Await()
	content, err := s.source.open(ctx, desc)
	if err != nil {
		return nil, err
	}
	return pacedContent{content, ctx, s.transfer, s.fetched}, nil
}

// pacedContent is content that a transfer reads.
type pacedContent struct {
	io.ReadCloser
	ctx      context.Context
	transfer *slots.Transfer
	fetched  *atomic.Uint64 // bytes; nil counts none
}

func (c pacedContent) Read(p []byte) (int, error) {
	n, err := c.transfer.Read(c.ctx, c.ReadCloser, p)
	if c.fetched != nil {
		c.fetched.Add(uint64(n))
	}
	return n, err
}
