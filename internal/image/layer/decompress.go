package layer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// Decompress returns the content of a gzip, zstd or plain stream. It tells the format by the first bytes and ignores
// the media type, which registries and archives often get wrong. A compressed stream may have any number of parts (gzip
// members, zstd frames) and may end in NULs, as on a tape; other trailing bytes are an error. The memory of all streams
// is bounded: a zstd stream waits for its window, until ctx ends, while others use the memory, and a window larger than
// limit.ZstdWindow is refused. Close returns the memory; it does not close r.
//
// proven says that the content is compared with a promised digest afterwards. Then the checksums of zstd frames are
// left out, which prove less and take a tenth of the decoder's time.
func Decompress(ctx context.Context, r io.Reader, proven bool) (io.ReadCloser, error) {
	br := readers.Get().(*bufio.Reader)
	br.Reset(r)
	plain, err := decompress(ctx, br, proven)
	if err != nil {
		giveBack(br)
		return nil, err
	}
	return plain, nil
}

func decompress(ctx context.Context, br *bufio.Reader, proven bool) (io.ReadCloser, error) {
	head, err := br.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case isGzip(head):
		return newGunzip(br)
	case isZstd(head):
		return newUnzstd(ctx, br, proven), nil
	}
	return &plainStream{br}, nil
}

// readers are the input buffers of decoders. Buffers and decoders are reused from layer to layer: allocated anew for
// each, they would be most of the garbage of a pull.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 64<<10) }}

func giveBack(br *bufio.Reader) {
	br.Reset(nil)
	readers.Put(br)
}

// IsPlain reports whether a reader that Decompress returned reads an uncompressed stream.
func IsPlain(r io.Reader) bool {
	_, ok := r.(*plainStream)
	return ok
}

type plainStream struct{ *bufio.Reader }

func (p *plainStream) Close() error {
	if p.Reader != nil {
		giveBack(p.Reader)
		p.Reader = nil
	}
	return nil
}

func isGzip(head []byte) bool { return bytes.HasPrefix(head, []byte{0x1f, 0x8b}) }

// gunzip reads the members of a gzip stream one by one, so that it can check what follows each.
type gunzip struct {
	br *bufio.Reader
	z  *gzip.Reader
}

var gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}

func newGunzip(br *bufio.Reader) (*gunzip, error) {
	g := &gunzip{br, gzipReaders.Get().(*gzip.Reader)}
	if err := g.z.Reset(br); err != nil {
		gzipReaders.Put(g.z)
		return nil, gzipError(err)
	}
	g.z.Multistream(false)
	return g, nil
}

func (g *gunzip) Read(p []byte) (int, error) {
	n, err := g.z.Read(p)
	if errors.Is(err, io.EOF) {
		err = g.nextMember()
	}
	if err != nil && err != io.EOF {
		err = gzipError(err)
	}
	return n, err
}

func (g *gunzip) nextMember() error {
	if head, _ := g.br.Peek(2); !isGzip(head) {
		return onlyPadding(g.br)
	}
	if err := g.z.Reset(g.br); err != nil {
		return err
	}
	g.z.Multistream(false)
	return nil
}

func (g *gunzip) Close() error {
	if g.br != nil {
		_ = g.z.Close()
		gzipReaders.Put(g.z)
		giveBack(g.br)
		g.br = nil
	}
	return nil
}

func gzipError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read gzip stream: it is cut short: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("read gzip stream: %w", err)
}

var errTrailing = errors.New("after its end comes something that is neither another part nor padding")

// onlyPadding reads the bytes after a compressed stream. It returns io.EOF when all of them are NULs.
func onlyPadding(br *bufio.Reader) error {
	for {
		if _, err := br.Peek(1); err != nil {
			return err
		}
		rest, _ := br.Peek(br.Buffered())
		if !allZero(rest) {
			return errTrailing
		}
		_, _ = br.Discard(len(rest))
	}
}

// buffers are for copying the content of files.
var buffers = sync.Pool{New: func() any { return new([128 << 10]byte) }}

func takeBuffer() []byte  { return buffers.Get().(*[128 << 10]byte)[:] }
func giveBuffer(b []byte) { buffers.Put((*[128 << 10]byte)(b)) }
