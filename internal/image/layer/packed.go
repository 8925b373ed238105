package layer

import (
	"errors"
	"os"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// packed is a compressed file being written: zstd frames of up to packedFrame bytes each. What a layer's files of this
// form need of memory is that much for each of them, whatever their length: the encoders are shared.
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
		panic(err) // of options that are constants
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
	z := encoders.Get().(*zstd.Encoder)
	p.out = z.EncodeAll(p.in, p.out[:0])
	encoders.Put(z)
	p.in = p.in[:0]
	_, err := p.file.Write(p.out)
	return err
}

func (p *packed) close() error { return errors.Join(p.flush(), p.file.Close()) }
