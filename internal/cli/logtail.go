package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
)

const (
	tailBlock = 64 << 10
	// headLength is how much of a line has its time, stream and tag.
	headLength = 80
)

// seekTail moves to the beginning of the last r.tail lines.
func (r *logReader) seekTail(ctx context.Context) error {
	at, err := tailOf(ctx, r.file, r.tail)
	if err != nil {
		return err
	}
	r.at = at
	_, err = r.file.Seek(at, io.SeekStart)
	return err
}

// tailOf is where the last so many lines of a file begin. Partial lines count as one with what ends them. It reads
// backwards from the end, so that the end of a large log costs no more than that of a small one.
func tailOf(ctx context.Context, f *os.File, lines int) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size()
	if lines == 0 || size == 0 {
		return size, nil
	}
	t := &tailSearch{file: f, block: make([]byte, 0, tailBlock), start: size, next: -1, left: lines}
	for t.start > 0 {
		if err := ctx.Err(); errors.Is(err, context.Canceled) {
			return 0, err
		}
		at, found, err := t.back(size)
		if errors.Is(err, io.EOF) {
			return 0, nil // the file became shorter meanwhile
		}
		if err != nil || found {
			return at, err
		}
	}
	at, _, err := t.begins(0)
	return at, err
}

// tailSearch looks for the beginning of a line from the end of a file.
type tailSearch struct {
	file  *os.File
	block []byte // of the file, from start
	start int64
	next  int64 // where the line after that which is looked for begins; -1 at the end of the file
	left  int   // lines that are to be found
}

// back reads the block before the one that it has, and looks at the lines that begin in it.
func (t *tailSearch) back(size int64) (at int64, found bool, err error) {
	from := max(t.start-tailBlock, 0)
	t.block, t.start = t.block[:t.start-from], from
	if _, err := t.file.ReadAt(t.block, from); err != nil {
		return 0, false, err
	}
	for end := len(t.block); ; {
		end = bytes.LastIndexByte(t.block[:end], '\n')
		if end < 0 {
			return 0, false, nil
		}
		begin := from + int64(end) + 1
		if begin == size {
			continue
		}
		if at, found, err = t.begins(begin); err != nil || found {
			return at, found, err
		}
	}
}

// begins is told where a line begins. The line after it counts unless this one is a part of it.
func (t *tailSearch) begins(begin int64) (at int64, found bool, err error) {
	line := t.next
	t.next = begin
	if line < 0 {
		return 0, false, nil
	}
	head, err := t.head(begin)
	if err != nil {
		return 0, false, err
	}
	if l, _ := parseLog(head); l.partial {
		return 0, false, nil
	}
	if t.left--; t.left > 0 {
		return 0, false, nil
	}
	return line, true, nil
}

// head is the beginning of a line.
func (t *tailSearch) head(begin int64) ([]byte, error) {
	head := t.block[begin-t.start:]
	if len(head) < headLength {
		head = make([]byte, headLength)
		n, err := t.file.ReadAt(head, begin)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		head = head[:n]
	}
	head, _, _ = bytes.Cut(head[:min(len(head), headLength)], []byte("\n"))
	return head, nil
}
