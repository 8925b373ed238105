package layer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/klauspost/compress/zstd"

	"berth/internal/fail/mark"
	"berth/internal/limit"
)

// isZstd recognizes a frame and a skippable frame, with which a seekable stream may begin.
func isZstd(head []byte) bool {
	if len(head) < 4 {
		return false
	}
	magic := binary.LittleEndian.Uint32(head)
	return magic == 0xFD2FB528 || magic&^0xF == 0x184D2A50
}

// unzstd reads a zstd stream of any number of frames.
type unzstd struct {
	frames *frames
	dec    *decoder // nil until the first frame
	proven bool     // leaves out the checksums of frames
	closed bool
}

// newZstdDecoder makes a decoder that decodes in the goroutine of its caller. Concurrent decoding of one stream would
// need much more memory and gain little, because hashing and writing the content takes longer than decoding.
func newZstdDecoder() *zstd.Decoder {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(uint64(limit.ZstdWindow.Limit)))
	if err != nil {
		panic(err) // the options are constants
	}
	return dec
}

func newUnzstd(ctx context.Context, br *bufio.Reader, proven bool) *unzstd {
	windows.enter()
	return &unzstd{frames: &frames{ctx: ctx, br: br}, proven: proven}
}

func (u *unzstd) Read(p []byte) (int, error) {
	if u.dec == nil {
		if err := u.start(); err != nil {
			return 0, err
		}
	}
	n, err := u.dec.Read(p)
	if err == nil || err == io.EOF && u.frames.err == io.EOF {
		return n, err
	}
	if u.frames.err != nil && u.frames.err != io.EOF {
		err = u.frames.err // the cause: the decoder saw only that its input ended
	}
	return n, zstdError(err)
}

// start takes a decoder after the window of the first frame has been acquired: a stream that waits for a window must
// not hold a decoder, which has one.
func (u *unzstd) start() error {
	if err := u.frames.advance(); err == io.EOF {
		return err
	} else if err != nil {
		return zstdError(err)
	}
	u.dec = windows.take(u.frames.window)
	u.frames.grow = func(window int64) { windows.grow(u.dec, window) }
	return u.dec.ResetWithOptions(u.frames, zstd.IgnoreChecksum(u.proven))
}

func zstdError(err error) error {
	if mark.As[*limit.Error](err) {
		return err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read zstd stream: it is cut short: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("read zstd stream: %w", err)
}

func (u *unzstd) Close() error {
	if u.closed {
		return nil
	}
	u.closed = true
	if u.dec != nil {
		_ = u.dec.Reset(nil) // drops its reference to u
		windows.put(u.dec)
	}
	u.frames.close()
	windows.leave()
	giveBack(u.frames.br)
	return nil
}

// frames passes a zstd stream on to its decoder and parses the headers of frames and blocks on the way. It acquires the
// memory for a frame's window before the decoder sees the frame, leaves out skippable frames (the index of a seekable
// or chunked stream), and tells the end of the stream from a stream that is cut short.
type frames struct {
	ctx     context.Context
	br      *bufio.Reader
	left    int         // bytes to pass on before the next header
	inside  bool        // in a frame: a block header comes next
	check   int         // the size of the checksum at the end of the frame
	begun   bool        // a frame or a skippable frame has been read
	window  int64       // the largest so far
	grow    func(int64) // is called when window grows; nil until there is a decoder
	release func()
	err     error
}

// advance reads headers until there are bytes to pass on.
func (f *frames) advance() error {
	for f.left == 0 && f.err == nil {
		f.err = f.next()
	}
	return f.err
}

func (f *frames) Read(p []byte) (int, error) {
	if err := f.advance(); err != nil {
		return 0, err
	}
	n, err := f.br.Read(p[:min(len(p), f.left)])
	f.left -= n
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		f.err = err
	}
	return n, err
}

// next reads the next header and sets how many bytes may pass.
func (f *frames) next() error {
	if f.inside {
		return f.nextBlock()
	}
	head, err := f.br.Peek(zstd.HeaderMaxSize)
	if len(head) == 0 || err != nil && err != io.EOF {
		return err
	}
	if f.begun && !isZstd(head) && (len(head) >= 4 || head[0] == 0) {
		return onlyPadding(f.br)
	}
	f.begun = true
	var h zstd.Header
	if err := h.Decode(head); err != nil {
		return err
	}
	if h.Skippable {
		return f.skip(h.HeaderSize + int(h.SkippableSize))
	}
	if err := f.reserve(&h); err != nil {
		return err
	}
	f.inside, f.left, f.check = true, h.HeaderSize, 0
	if h.HasCheckSum {
		f.check = 4
	}
	return nil
}

func (f *frames) nextBlock() error {
	head, err := f.br.Peek(3)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	header := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	last, kind, size := header&1 == 1, header>>1&3, header>>3
	if kind == 1 { // one byte, repeated
		size = 1
	}
	f.left = len(head) + size
	if last {
		f.inside = false
		f.left += f.check
	}
	return nil
}

func (f *frames) skip(n int) error {
	_, err := f.br.Discard(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// reserve acquires the window of a frame, unless an earlier frame had one as large.
func (f *frames) reserve(h *zstd.Header) error {
	size := h.WindowSize
	if h.SingleSegment {
		size = h.FrameContentSize
	}
	if err := limit.ZstdWindow.Check(int64(min(size, math.MaxInt64))); err != nil {
		return err
	}
	if int64(size) <= f.window {
		return nil
	}
	f.close()
	release, err := windows.acquire(f.ctx, int64(size))
	if err != nil {
		return err
	}
	f.window, f.release = int64(size), release
	if f.grow != nil {
		f.grow(f.window)
	}
	return nil
}

func (f *frames) close() {
	if f.release != nil {
		f.release()
		f.release = nil
	}
}
