package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth/internal/admin"
)

// session is a person at the streams of a container.
type session struct {
	node       *admin.Client
	cmd        *cobra.Command
	tty, stdin bool // what the person asked for

	screen
	cancel context.CancelCauseFunc
	done   chan error // gets the end of the attachment; errLeft when the container goes on without it
	shown  flow       // what came of the container's output
	behind chan struct{}
	begun  chan struct{} // closed when the container was started
	// stop stops a container whose input could not be read to its end, since it must not take that for the end.
	stop func(context.Context)
	cut  chan error // gets why it could not be read
}

// breaking is an input without a terminal. When it cannot be read any more, it has broke called before it says so: by
// the end of the session a container sees the end of its input.
type breaking struct {
	io.Reader
	broke func(error)
}

func (b *breaking) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.broke(err)
	}
	return n, err
}

// broke stops the container, once it was started.
func (s *session) broke(ctx context.Context, why error) {
	s.cut <- fmt.Errorf("read the input: %w", why)
	select {
	case <-s.begun:
		s.stop(ctx)
	case <-ctx.Done():
	}
}

// flow notes what output came through, and when it last did. One goroutine writes.
type flow struct {
	writing  atomic.Bool
	last     atomic.Pointer[time.Time] // when a write came to its end, by a clock that nobody sets; nil before that
	out, err atomic.Int64              // bytes
}

// through has f note what is written to the streams.
func (f *flow) through(s *admin.Streams) {
	s.Out, s.Err = flowWriter{s.Out, f, &f.out}, flowWriter{s.Err, f, &f.err}
}

// idle is how long nothing has come since a time. While a reader takes its time with what has come, it is nothing.
func (f *flow) idle(since time.Time) time.Duration {
	if f.writing.Load() {
		return 0
	}
	if last := f.last.Load(); last != nil && last.After(since) {
		since = *last
	}
	return time.Since(since)
}

type flowWriter struct {
	w     io.Writer
	f     *flow
	bytes *atomic.Int64
}

func (w flowWriter) Write(p []byte) (int, error) {
	w.f.writing.Store(true)
	n, err := w.w.Write(p)
	w.bytes.Add(int64(n))
	now := time.Now()
	w.f.last.Store(&now)
	w.f.writing.Store(false)
	return n, err
}

// screen is the person's terminal.
type screen struct {
	sizes   chan admin.Size
	changed chan os.Signal // the size of the terminal may be another one
	restore func()
}

// errLeft is why a session ends whose person goes and lets the container be.
var errLeft = errors.New("left by ^P ^Q")

// errBehind is why a session shows no more output: it was not taken as fast as it came, and goes on in the log. The
// input goes on.
var errBehind = errors.New("the output was not taken as fast as it came")

// terminalOf is the terminal behind a stream, if there is one.
func terminalOf(stream any) *os.File {
	stream = plainWriter(stream)
	if p, ok := stream.(*printer); ok {
		stream = p.terminal
	}
	if f, ok := stream.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// attach joins a container's streams before it is started, so that none of its output is missed.
func (s *session) attach(setup context.Context, container string) error {
	var ctx context.Context
	ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(setup))
	s.done, s.sizes, s.begun = make(chan error, 1), make(chan admin.Size, 1), make(chan struct{})
	ready := make(chan struct{})
	streams := programStreams(s.cmd)
	s.shown.through(&streams)
	streams.Resize, streams.Ready = s.sizes, func() { close(ready) }
	if s.stdin {
		streams.In = s.cmd.InOrStdin()
	}
	if s.tty {
		if err := s.take(ctx, s.cmd, s.stdin); err != nil {
			s.cancel(nil)
			return err
		}
		if s.stdin {
			streams.In = &leaving{in: streams.In, leave: func() { s.cancel(errLeft) }}
		}
	}
	req := &admin.AttachRequest{Container: container, TTY: s.tty, Stdin: s.stdin}
	if s.stdin && !s.tty {
		s.behind = make(chan struct{})
		s.cut = make(chan error, 1)
		streams.In = &breaking{streams.In, func(why error) { s.broke(ctx, why) }}
		req.KeepInput, streams.Behind = true, func() { close(s.behind) }
	}
	go func() {
		err := s.node.Attach(ctx, req, streams)
		if errors.Is(context.Cause(ctx), errLeft) {
			err = errLeft
		}
		s.done <- err
	}()
	select {
	case <-ready:
		return nil
	case err := <-s.done:
		if err == nil && isClosed(ready) { // it was brief
			s.done <- nil
			return nil
		}
		s.end()
		if err == nil {
			err = errors.New("attach: the container's output ended before it began")
		}
		return err
	case <-setup.Done():
		s.end()
		return errors.New("interrupted")
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *session) attached() bool { return s.done != nil }

// cutOff is why the input could not be read to its end, if it could not.
func (s *session) cutOff() error {
	select {
	case err := <-s.cut:
		return err
	default:
		return nil
	}
}

// end gives the terminal back.
func (s *session) end() {
	s.cancel(nil)
	s.giveBack()
}

func (s *screen) giveBack() {
	if s.restore != nil {
		s.restore()
		s.restore = nil
	}
}

// take makes an interactive terminal hand on every key, and follows its size.
func (s *screen) take(ctx context.Context, cmd *cobra.Command, typing bool) error {
	in, out := terminalOf(cmd.InOrStdin()), terminalOf(stdout(cmd))
	if in != nil && typing {
		old, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return err
		}
		// When the output has no reader any more, writing fails, instead of ending the command with the terminal as it
		// is.
		broken := make(chan os.Signal, 1)
		signal.Notify(broken, syscall.SIGPIPE)
		s.restore = func() {
			_ = term.Restore(int(in.Fd()), old)
			signal.Stop(broken)
		}
	}
	if out == nil {
		out = in
	}
	if out != nil {
		s.changed = make(chan os.Signal, 1)
		signal.Notify(s.changed, syscall.SIGWINCH)
		go func() {
			defer signal.Stop(s.changed)
			s.followSize(ctx, out)
		}()
	}
	return nil
}

// started says the size once more: a runtime may not have had a terminal to set it on before.
func (s *session) started() {
	if s.attached() {
		close(s.begun)
	}
	select {
	case s.changed <- syscall.SIGWINCH:
	default: // it has no terminal, or is about to say it anyway
	}
}

func (s *screen) followSize(ctx context.Context, terminal *os.File) {
	for {
		if width, height, err := term.GetSize(int(terminal.Fd())); err == nil {
			select {
			case s.sizes <- admin.Size{Width: uint16(width), Height: uint16(height)}:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return
		}
	}
}

// outputGrace is how long the rest of the output is waited for, since the end of the container and since there was
// some: a process that it left behind may hold it open.
const outputGrace = 10 * time.Second

// wait returns when the container and its output have ended.
func (s *session) wait(end *ending) error {
	select {
	case <-s.behind:
		return errBehind
	case err := <-s.done:
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		<-end.done
		return end.err
	case <-end.done:
		if end.err != nil {
			return end.err
		}
	}
	return s.rest(outputGrace)
}

// rest waits for the rest of the output of a container that has ended, until nothing has come for as long as grace.
// However long a reader takes for what has come, nothing is left out.
func (s *session) rest(grace time.Duration) error {
	began := time.Now()
	for left := grace; left > 0; left = grace - s.shown.idle(began) {
		select {
		case err := <-s.done:
			return err
		case <-s.behind:
			return errBehind
		case <-time.After(left):
		}
	}
	return nil
}
