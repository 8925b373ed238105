package inflate

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"hash/crc32"
)

// markBytes is the length of a mark.
const markBytes = 32

func newMark() []byte {
	b := make([]byte, markBytes)
	_, _ = rand.Read(b) // it never fails
	return b
}

// member is a gzip member with b in it, as it is.
func member(b []byte) *bytes.Reader {
	out := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1} // a header without fields; the last block, which is stored
	out = binary.LittleEndian.AppendUint16(out, uint16(len(b)))
	out = binary.LittleEndian.AppendUint16(out, ^uint16(len(b)))
	out = append(out, b...)
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(b))
	return bytes.NewReader(binary.LittleEndian.AppendUint32(out, uint32(len(b))))
}
