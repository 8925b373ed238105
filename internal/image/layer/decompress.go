package layer

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Decompress reads a gzip, zstd or plain stream as its content. The first bytes decide, not a media type: registries and
// archives name it wrongly often enough. The memory a stream may ask for is bounded.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	head, err := br.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("read gzip stream: %w", err)
		}
		return z, nil
	case isZstd(head):
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, fmt.Errorf("read zstd stream: %w", err)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(br), nil
}

// isZstd knows a frame and a skippable frame, with which a seekable stream may begin.
func isZstd(head []byte) bool {
	if len(head) < 4 {
		return false
	}
	magic := binary.LittleEndian.Uint32(head)
	return magic == 0xFD2FB528 || magic&^0xF == 0x184D2A50
}
