package inflate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"

	"berth/internal/image/inflate/tail"
)

// Stream is a gzip stream that a program inflates. One goroutine reads it; it never blocks for good once the context
// of its start has ended.
type Stream struct {
	plain  *os.File
	mark   []byte
	cancel context.CancelFunc
	fed    chan struct{} // closed when the program has all of the stream, or takes no more
	ended  chan struct{} // closed when nothing of the program is left
	input  atomic.Value  // the error of the reader that the program is fed from; set before its output ends for that
	ran    error         // of the program; set before ended is closed
	unmark io.Reader
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
	if in.err != nil {
		s.input.Store(reason{in.err})
		s.cancel()
	}
}

// reason is an error of any type.
type reason struct{ error }

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

// Output is the end of the pipe that the program writes to, for another process to read, and how many bytes the mark
// has that is behind the plain stream there. Who hands the pipe on closes it: the program is to see when there is no
// reader.
func (s *Stream) Output() (pipe *os.File, mark int) { return s.plain, len(s.mark) }

// Proven says what another process made of the output, which found tail at its end, or failed: nil when the program
// came to the end of the stream. Else it is the error of the reader that the program was fed from, where that is the
// reason, an *Error, or the process's own.
func (s *Stream) Proven(tail []byte, failed error) error {
	if input, ok := s.input.Load().(reason); ok {
		return input.error
	}
	if failed != nil {
		return failed
	}
	if err := s.Wait(); err != nil {
		return err
	}
	if !bytes.Equal(tail, s.mark) {
		return &Error{errUnmarked}
	}
	return nil
}

// Wait waits for the end of the program, which comes when its output has been read. An error is the reader's own, or an
// *Error.
func (s *Stream) Wait() error {
	<-s.ended
	<-s.fed
	s.cancel()
	if input, ok := s.input.Load().(reason); ok {
		return input.error
	}
	if s.ran != nil {
		return &Error{s.ran}
	}
	return nil
}

// Read reads the plain stream. io.EOF means that the program came to the end of the compressed one, and that nothing
// was behind that. Any other error is the reader's own, or an *Error.
func (s *Stream) Read(p []byte) (int, error) {
	if s.unmark == nil {
		s.unmark = Unmarked(s.plain, s.mark)
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
func Unmarked(r io.Reader, mark []byte) io.Reader { return &unmarked{tail.New(r, len(mark)), mark} }

type unmarked struct {
	*tail.Reader
	mark []byte
}

var errUnmarked = errors.New("it did not come to the end of the stream, or something is behind that")

func (u *unmarked) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	if errors.Is(err, io.EOF) && !bytes.Equal(u.Held(), u.mark) {
		return n, &Error{errUnmarked}
	}
	return n, err
}
