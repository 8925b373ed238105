package monitor

import (
	"bytes"
	"time"
)

// maxLine is how much of a line, in bytes, goes into one entry of the log; a longer line is written in parts, all but
// the last tagged P. Kubelets and agents expect this size.
const maxLine = 16 << 10

// maxHead bounds what stands in an entry before the content: time, stream and tag.
const maxHead = 64

// partTime is how long the beginning of a line waits for its end before it is written as a part.
const partTime = 250 * time.Millisecond

// appendEntries appends the entries of a piece of a stream, as far as there is room in dst, and returns how much of the
// piece is in them. The beginning of a line is left, unless it is to be flushed. The same bytes make the same entries,
// however they came: what was cut off is made again by this.
func appendEntries(dst, piece []byte, at time.Time, n int, flush bool) ([]byte, int) {
	used := 0
	var space [maxHead]byte
	head := appendHead(space[:0], at, n)
	for used < len(piece) {
		rest := piece[used:]
		tag, take, skip := byte('F'), bytes.IndexByte(rest[:min(len(rest), maxLine+1)], '\n'), 1
		if take < 0 {
			if len(rest) <= maxLine && !flush {
				break
			}
			tag, take, skip = 'P', min(len(rest), maxLine), 0
		}
		if len(dst)+maxHead+take > cap(dst) {
			break
		}
		dst = appendEntry(dst, head, tag, rest[:take])
		used += take + skip
	}
	return dst, used
}

// appendHead appends what stands in an entry before its tag.
func appendHead(dst []byte, at time.Time, n int) []byte {
	dst = at.AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, ' ')
	dst = append(dst, streamNames[n]...)
	return append(dst, ' ')
}

// appendEntry appends one entry in CRI's format: <time> <stream> <P or F> <content>.
func appendEntry(dst, head []byte, tag byte, content []byte) []byte {
	dst = append(dst, head...)
	dst = append(dst, tag, ' ')
	dst = append(dst, content...)
	return append(dst, '\n')
}
