package inflate

import (
	"bytes"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
)

const (
	// HeadBytes is how much Suits wants to see of a stream.
	HeadBytes = 64 << 10
	// headPlain bounds what is inflated of it: a bomb goes on as a long member does.
	headPlain = 1 << 20
)

// Suits reports whether a stream that begins with head is one for the program: gzip, of one long member. Streams of
// many members, as those forms have that let a reader begin anywhere, begin with a short one; igzip would read them as
// well, but builders that make them do things that are their own. Reserved flags are the library's to refuse: igzip
// passes over them.
func Suits(head []byte) bool {
	const method, reserved = 8, 0xe0
	if len(head) < 10 || head[0] != 0x1f || head[1] != 0x8b || head[2] != method || head[3]&reserved != 0 {
		return false
	}
	r := bytes.NewReader(head)
	z, err := gzip.NewReader(r)
	if err != nil {
		return false
	}
	defer z.Close()
	z.Multistream(false)
	_, err = io.CopyN(io.Discard, z, headPlain)
	return err == nil || errors.Is(err, io.ErrUnexpectedEOF)
}
