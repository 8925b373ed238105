package runtime

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// Exec is a process to run in a running container. It has no input; its output crosses the daemon alone, not the
// monitor.
type Exec struct {
	Process        *specs.Process
	Stdout, Stderr io.Writer     // nil: not wanted
	Timeout        time.Duration // zero is none
}

// ExecResult is how an exec ended.
type ExecResult struct {
	ExitCode int // 128+n where signal n ended it
	TimedOut bool
}

// processFile writes down a process for the monitor, and returns the file's name in the container's directory. No other
// file has had it: one that an earlier daemon has left to the monitor may not be read yet.
func (c *Config) processFile(pod, ctr string, p *specs.Process) (name string, remove func(), err error) {
	data, err := json.Marshal(p)
	if err != nil {
		return "", nil, fmt.Errorf("encode the process: %w", err)
	}
	name = "process-" + rand.Text() + ".json"
	path := filepath.Join(c.bundle(pod, ctr), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return "", nil, err
	}
	return name, func() { _ = os.Remove(path) }, nil
}

// Exec runs a process in a container and waits for its end. When the timeout passes or ctx ends first, nothing of it is
// left; after Leave, the end of ctx leaves it to the monitor, which keeps the timeout also without a daemon. A process
// that it leaves may hold its streams: what that writes is waited for as long as drainTime says, and then thrown away
// for as long as it lives.
func (r *Runtime) Exec(ctx context.Context, pod, ctr string, e Exec) (res ExecResult, err error) {
	r.execs.Add(1)
	defer r.execs.Add(-1)
	name, remove, err := r.cfg.processFile(pod, ctr, e.Process)
	if err != nil {
		return ExecResult{}, err
	}
	defer func() {
		if !errors.Is(err, errLeft) { // then its runtime may read the file yet, and the monitor removes it
			remove()
		}
	}()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return ExecResult{}, err
	}
	defer null.Close()
	fds, outlets := []*os.File{null}, []*outlet{}
	finish := func(wait time.Duration) (err error) {
		deadline := time.Now().Add(wait)
		var held []*os.File
		for _, o := range outlets {
			f, e := o.finish(deadline)
			held, err = append(held, f), errors.Join(err, e)
		}
		r.drains.take(ctx, pod, ctr, held...)
		return err
	}
	for _, w := range []io.Writer{e.Stdout, e.Stderr} {
		if w == nil {
			fds = append(fds, null)
			continue
		}
		o, err := newOutlet(w)
		if err != nil {
			return ExecResult{}, errors.Join(fmt.Errorf("exec: %w", err), finish(drainTime))
		}
		fds, outlets = append(fds, o.theirs), append(outlets, o)
	}
	q := wire.Request{Op: wire.Exec, Container: ctr, Process: name, Timeout: e.Timeout.Milliseconds()}
	reply, err := r.call(ctx, pod, q, fds...)
	wait := drainTime
	if errors.Is(err, errLeft) { // its output is the monitor's to read now
		wait = 0
	}
	lost := finish(wait)
	if err != nil {
		return ExecResult{}, err
	}
	if lost != nil {
		return ExecResult{}, fmt.Errorf("exec: read its output: %w", lost)
	}
	return ExecResult{ExitCode: reply.Code, TimedOut: reply.TimedOut}, nil
}

// Attach connects a caller to a container's standard streams.
type Attach struct {
	Stdin          io.Reader // nil where the caller has no input
	Stdout, Stderr io.Writer // nil where the caller does not want it; a terminal has no Stderr
	Ready          func()    // called when no later output can be missed; may be nil
	// Behind, when set, is called when the caller did not keep up, and has had all that came until then. Attach goes on
	// for the input, until ctx ends; otherwise it returns ErrSlow.
	Behind func()
}

// attachBuffer is how much output, in bytes, waits for a slow client before it is dropped.
const attachBuffer = 1 << 20

// ErrSlow is the end of an attachment whose client did not read fast enough. It has not seen all of the output.
var ErrSlow = errors.New("the client did not keep up with the container's output, which does not wait for it: attach " +
	"again, or read the log")

// ErrCut is the end of an attachment whose monitor was killed, and not of the container's output.
var ErrCut = errors.New("the pod's monitor was killed, and with it the attachment; the container goes on under " +
	"another monitor: attach again")

// Attach copies until the container's output ends, ctx ends, the caller does not keep up, or the pod's monitor is
// killed. A Read or Write of the caller's streams may still be under way when it returns because of ctx, and ends with
// them.
func (r *Runtime) Attach(ctx context.Context, pod, ctr string, a Attach) error {
	var copies sync.WaitGroup
	var ours, theirs []*os.File
	defer func() { closeFiles(ours); closeFiles(theirs) }()
	for _, w := range []io.Writer{a.Stdout, a.Stderr, nil} { // the last is the notice
		pr, pw, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("attach: %w", err)
		}
		ours, theirs = append(ours, pr), append(theirs, pw)
		if len(ours) == 3 {
			break
		}
		widen(pr)
		if w == nil {
			w = io.Discard
		}
		copies.Go(func() {
			_, _ = io.Copy(w, pr)
			_ = pr.Close() // so that the monitor sees that there is no reader
		})
	}
	c, err := r.links.monitor(ctx, pod)
	if err != nil {
		return fmt.Errorf("attach container %s: %w", ctr, err)
	}
	_, err = c.quick(ctx, wire.Request{Op: wire.Attach, Container: ctr}, theirs...)
	closeFiles(theirs)
	theirs = nil
	if err != nil {
		return err
	}
	if a.Ready != nil {
		a.Ready()
	}
	if a.Stdin != nil {
		in, err := feed(ctx, r, pod, ctr, a.Stdin)
		if err != nil {
			return err
		}
		defer in.Close()
	}
	ended := make(chan struct{})
	go func() { copies.Wait(); close(ended) }()
	select {
	case <-ended:
		err := noticed(ours[2])
		if err != nil && a.Behind != nil {
			a.Behind()
			<-ctx.Done()
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if c.killed(ctx) {
			return ErrCut
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// noticed reports whether the monitor dropped the client. One of an earlier release does not tell, and keeps its end
// open.
func noticed(notice *os.File) error {
	_ = notice.SetReadDeadline(time.Now().Add(time.Second))
	if n, _ := notice.Read(make([]byte, 1)); n > 0 {
		return ErrSlow
	}
	return nil
}

// widen makes a pipe larger, where the kernel allows it.
func widen(f *os.File) {
	if rc, err := f.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, attachBuffer) })
	}
}

// feed copies a caller's input to the container until it ends, or what it returns is closed. A container whose input is
// meant for one client then sees the end of it. What is sent to one that has no input is thrown away.
func feed(ctx context.Context, r *Runtime, pod, ctr string, in io.Reader) (io.Closer, error) {
	dir := r.cfg.bundle(pod, ctr)
	b, err := r.cfg.bundleOf(pod, ctr)
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	var w *os.File
	switch {
	case !b.Stdin: // nor is what is typed at its terminal for it
		go discard(in)
		return io.NopCloser(nil), nil
	case b.Terminal:
		w, err = r.Console(ctx, pod, ctr)
	default:
		w, err = os.OpenFile(filepath.Join(dir, "stdin"), os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil && b.StdinOnce {
			if err := noteInput(&r.cfg, pod, ctr); err != nil { // only a daemon that is killed would be missed
				r.cfg.Log.Warn("a container whose client goes with the daemon would wait for its input", "pod", pod,
					"container", ctr, "error", err)
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("attach standard input: %w", err)
	}
	go func() {
		_, err := io.Copy(w, in)
		_ = w.Close()
		if b.StdinOnce && !b.Terminal {
			closeStdin(context.WithoutCancel(ctx), r, pod, ctr)
		}
		if err != nil {
			discard(in)
		}
	}()
	return w, nil
}

// Console returns the master of a container's terminal, for the caller to close.
func (r *Runtime) Console(ctx context.Context, pod, ctr string) (*os.File, error) {
	c, err := r.links.monitor(ctx, pod)
	if err != nil {
		return nil, err
	}
	return askConsole(ctx, c, ctr)
}

// askConsole asks a monitor for the master of a container's terminal.
func askConsole(ctx context.Context, c *client, ctr string) (*os.File, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.quickLimit(), errNoMonitor)
	defer cancel()
	a, err := c.ask(ctx, wire.Request{Op: wire.Console, Container: ctr})
	if err != nil {
		return nil, err
	}
	if len(a.fds) != 1 { // the kernel delivers none where this process has no room for it
		closeFiles(a.fds)
		return nil, fmt.Errorf("the terminal of container %s came as %d descriptors: %w", ctr, len(a.fds), unix.EMFILE)
	}
	return a.fds[0], nil
}

// Resize sets the size of a container's terminal, in characters.
func (r *Runtime) Resize(ctx context.Context, pod, ctr string, width, height uint16) error {
	f, err := r.Console(ctx, pod, ctr)
	if err != nil {
		return err
	}
	defer f.Close()
	return setSize(f, width, height)
}

// setSize sets the size of the terminal behind a master. One without a width or a height says nothing: clients send it
// whose own terminal has no size.
func setSize(f *os.File, width, height uint16) error {
	if width < 1 || height < 1 {
		return nil
	}
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var sizeErr error
	err = rc.Control(func(fd uintptr) {
		sizeErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
	})
	return errors.Join(err, sizeErr)
}
