package inflate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
)

// Stream is a gzip stream that a program inflates. One goroutine reads it; it never blocks for good once the context
// of its start has ended.
type Stream struct {
	plain  *os.File
	mark   []byte
	cancel context.CancelFunc
	fed    chan struct{} // closed when the program has all of the stream, or takes no more
	ended  chan struct{} // closed when nothing of the program is left
	input  error         // of the reader that the program is fed from; set before fed is closed
	ran    error         // of the program; set before ended is closed
	unmark *unmarked
}

// Error says that the program did not inflate a stream: that is no proof that the stream is bad. The library is to
// read it.
type Error struct{ Cause error }

func (e *Error) Error() string { return "the program for gzip did not inflate it: " + e.Cause.Error() }
func (e *Error) Unwrap() error { return e.Cause }

// feed passes r on to the program, and then the mark.
func (s *Stream) feed(to *os.File, r io.Reader) {
	defer close(s.fed)
	defer to.Close()
	in := &source{r: r}
	if _, err := io.CopyBuffer(onlyWriter{to}, in, make([]byte, 64<<10)); err == nil {
		_, _ = io.Copy(to, member(s.mark))
	}
	if s.input = in.err; s.input != nil {
		s.cancel()
	}
}

// source remembers why a reader ended, which is not why the program took no more.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// onlyWriter hides that a pipe could read by itself: its copying by way of another pipe is slower than a buffer.
type onlyWriter struct{ io.Writer }

// Output is the end of the pipe that the program writes to, for another process to read, and the mark that is behind
// the plain stream there: Unmarked takes it off. Who hands it on closes the daemon's copy by Close, after Wait.
func (s *Stream) Output() (pipe *os.File, mark []byte) { return s.plain, s.mark }

// Wait waits for the end of the program, which comes when its output has been read. An error is the reader's own, or an
// *Error.
func (s *Stream) Wait() error {
	<-s.ended
	<-s.fed
	s.cancel()
	switch {
	case s.input != nil:
		return s.input
	case s.ran != nil:
		return &Error{s.ran}
	}
	return nil
}

// Read reads the plain stream. io.EOF means that the program came to the end of the compressed one, and that nothing
// was behind that. Any other error is the reader's own, or an *Error.
func (s *Stream) Read(p []byte) (int, error) {
	if s.unmark == nil {
		s.unmark = &unmarked{r: s.plain, mark: s.mark}
	}
	n, err := s.unmark.Read(p)
	if err == nil {
		return n, nil
	}
	if failed := s.Wait(); failed != nil {
		return n, failed
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, errUnmarked) {
		err = &Error{err}
	}
	return n, err
}

// Stop ends the program: a Read that waits for it returns.
func (s *Stream) Stop() { s.cancel() }

// Close ends the program, and returns when nothing of it is left and the reader that it was fed from is not read any
// more: whoever closes has made sure that this one does not block.
func (s *Stream) Close() error {
	s.cancel()
	err := s.plain.Close()
	<-s.ended
	<-s.fed
	return err
}

// Unmarked reads r up to the mark at its end. Where that is missing, the end is an error.
func Unmarked(r io.Reader, mark []byte) io.Reader { return &unmarked{r: r, mark: mark} }

// unmarked holds back as many bytes as a mark has.
type unmarked struct {
	r    io.Reader
	mark []byte
	held []byte
	few  []byte // read for a caller that has little room
	err  error
}

var errUnmarked = errors.New("it did not come to the end of the stream, or something is behind that")

func (u *unmarked) Read(p []byte) (int, error) {
	if len(u.few) > 0 {
		n := copy(p, u.few)
		u.few = u.few[n:]
		return n, nil
	}
	if len(p) <= len(u.mark) {
		buf := make([]byte, 4<<10)
		n, err := u.pass(buf)
		if u.few = buf[:n]; n == 0 {
			return 0, err
		}
		return u.Read(p)
	}
	return u.pass(p)
}

// pass reads into p, which has more room than a mark takes: what was held before, and what follows, but for as many
// bytes as are to be held then.
func (u *unmarked) pass(p []byte) (int, error) {
	for u.err == nil {
		before := copy(p, u.held)
		n, err := u.r.Read(p[before:])
		u.err = err
		n += before
		free := max(0, n-len(u.mark))
		u.held = append(u.held[:0], p[free:n]...)
		if free > 0 {
			return free, nil
		}
	}
	if errors.Is(u.err, io.EOF) && !bytes.Equal(u.held, u.mark) {
		return 0, &Error{errUnmarked}
	}
	return 0, u.err
}
