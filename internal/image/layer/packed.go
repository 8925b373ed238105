package layer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/klauspost/compress/zstd"

	"berth/internal/limit"
)

// packed writes a compressed file of zstd frames, which hold up to packedFrame bytes each. An open file needs that much
// memory, whatever its length; the encoders are shared.
type packed struct {
	file *os.File
	in   []byte
	out  []byte
}

const packedFrame = 64 << 10

var encoders = sync.Pool{New: func() any {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(packedFrame),
		zstd.WithLowerEncoderMem(true), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		panic(err) // the options are constants
	}
	return z
}}

func createPacked(name string, flags int) (*packed, error) {
	f, err := os.OpenFile(name, flags|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &packed{file: f, in: make([]byte, 0, packedFrame)}, nil
}

func (p *packed) Write(b []byte) (int, error) {
	total := len(b)
	for len(b) > 0 {
		n := copy(p.in[len(p.in):cap(p.in)], b)
		p.in, b = p.in[:len(p.in)+n], b[n:]
		if len(p.in) == cap(p.in) {
			if err := p.flush(); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

func (p *packed) flush() error {
	if len(p.in) == 0 {
		return nil
	}
	if len(p.in) <= rawFrame {
		p.out = appendRawFrame(p.out[:0], p.in)
	} else {
		z := encoders.Get().(*zstd.Encoder)
		p.out = z.EncodeAll(p.in, p.out[:0])
		encoders.Put(z)
	}
	p.in = p.in[:0]
	_, err := p.file.Write(p.out)
	return err
}

// rawFrame is the size up to which a frame is stored uncompressed. Making the first encoder of a process takes longer
// than everything else about a small layer, and compression would save less than a block of the disk.
const rawFrame = 3 << 10

// appendRawFrame appends a zstd frame of one raw block with the bytes b, which must be fewer than 64 KiB (RFC 8878,
// 3.1.1).
func appendRawFrame(to, b []byte) []byte {
	to = binary.LittleEndian.AppendUint32(to, 0xFD2FB528)
	const oneSegment, twoByteSize, bias = 1 << 5, 1 << 6, 256
	if len(b) < bias {
		to = append(to, oneSegment, byte(len(b)))
	} else {
		to = binary.LittleEndian.AppendUint16(append(to, oneSegment|twoByteSize), uint16(len(b)-bias))
	}
	const last = 1
	block := uint32(len(b))<<3 | last
	to = append(to, byte(block), byte(block>>8), byte(block>>16))
	return append(to, b...)
}

func (p *packed) close() error { return errors.Join(p.flush(), p.file.Close()) }

// eachJSON calls do for each line of a packed file, until do fails or ctx ends. A line longer than limit.LayerLine is
// an error, so that a file written by a subverted unpacker cannot exhaust the daemon's memory.
func eachJSON(ctx context.Context, name, what string, do func(raw []byte) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(64<<20), zstd.WithDecoderMaxWindow(maxPackedWindow))
	if err != nil {
		return err
	}
	defer z.Close()
	lines := bufio.NewReaderSize(z, 32<<10)
	var long []byte
	for n := int64(1); ; n++ {
		if n%256 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		var raw []byte
		raw, long, err = readLine(lines, long)
		if len(raw) > 0 {
			if err := do(raw); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read layer %s: %w", what, err)
		}
	}
}

// maxPackedWindow is the largest window of packed files that is accepted for reading. Those written have packedFrame.
const maxPackedWindow = 1 << 20

// readLine returns the next line: a slice of the reader's buffer, or of long, which it may grow, if the line is longer
// than the buffer.
func readLine(r *bufio.Reader, long []byte) (line, grown []byte, err error) {
	line, err = r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, long, err
	}
	long = append(long[:0], line...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if err := limit.LayerLine.Check(int64(len(long))); err != nil {
			return nil, long, err
		}
		line, err = r.ReadSlice('\n')
		long = append(long, line...)
	}
	return long, long, err
}
