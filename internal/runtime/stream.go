package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// Exec is a process to run in a running container. Its streams are given to it as they are: its output crosses neither the
// monitor nor the daemon. A nil stream is /dev/null.
type Exec struct {
	Process               *specs.Process
	Stdin, Stdout, Stderr *os.File
	Timeout               time.Duration // zero is none
}

// ExecResult is how an exec ended.
type ExecResult struct {
	ExitCode int // 128+n where signal n ended it
	TimedOut bool
}

var execSeq atomic.Uint64

// Exec runs a process in a container and waits for its end. When the timeout passes or ctx ends first, nothing of it is
// left. The timeout is kept by the monitor, whether this daemon lives or not.
func (r *Runtime) Exec(ctx context.Context, pod, ctr string, e Exec) (ExecResult, error) {
	data, err := json.Marshal(e.Process)
	if err != nil {
		return ExecResult{}, err
	}
	name := fmt.Sprintf("process-%d-%d.json", os.Getpid(), execSeq.Add(1))
	path := filepath.Join(r.cfg.bundle(pod, ctr), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return ExecResult{}, err
	}
	defer os.Remove(path)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return ExecResult{}, err
	}
	defer null.Close()
	fds := []*os.File{e.Stdin, e.Stdout, e.Stderr}
	for i, f := range fds {
		if f == nil {
			fds[i] = null
		}
	}
	reply, err := r.call(ctx, pod, wire.Request{Op: wire.Exec, Container: ctr, Process: name, Timeout: e.Timeout.Milliseconds()}, fds...)
	if err != nil {
		return ExecResult{}, err
	}
	return ExecResult{ExitCode: reply.Code, TimedOut: reply.TimedOut}, nil
}

// Attach connects a caller to a container's standard streams.
type Attach struct {
	Stdin          io.Reader // nil where the caller has no input
	Stdout, Stderr io.Writer // nil where the caller does not want it; a terminal has no Stderr
	Ready          func()    // called when no later output can be missed; may be nil
}

// attachBuffer is how much output, in bytes, waits for a slow client before it is dropped.
const attachBuffer = 1 << 20

// Attach copies until the container's output ends, ctx ends, or the caller does not keep up.
func (r *Runtime) Attach(ctx context.Context, pod, ctr string, a Attach) error {
	var copies sync.WaitGroup
	var ours, theirs []*os.File
	defer func() { closeFiles(ours); closeFiles(theirs) }()
	for _, w := range []io.Writer{a.Stdout, a.Stderr} {
		pr, pw, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("attach: %w", err)
		}
		widen(pr)
		ours, theirs = append(ours, pr), append(theirs, pw)
		if w == nil {
			w = io.Discard
		}
		copies.Go(func() { _, _ = io.Copy(w, pr) })
	}
	if _, err := r.call(ctx, pod, wire.Request{Op: wire.Attach, Container: ctr}, theirs...); err != nil {
		closeFiles(theirs)
		return err
	}
	closeFiles(theirs)
	theirs = nil
	if a.Ready != nil {
		a.Ready()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if a.Stdin != nil {
		if err := r.feed(ctx, pod, ctr, a.Stdin); err != nil {
			return err
		}
	}
	ended := make(chan struct{})
	go func() { copies.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		for _, f := range ours {
			_ = f.SetReadDeadline(time.Unix(1, 0))
		}
		<-ended
		return context.Cause(ctx)
	}
}

// widen makes a pipe larger, where the kernel allows it.
func widen(f *os.File) {
	if rc, err := f.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, attachBuffer) })
	}
}

// feed copies a caller's input to the container until it ends. A container whose input is meant for one client then sees
// the end of it.
func (r *Runtime) feed(ctx context.Context, pod, ctr string, in io.Reader) error {
	dir := r.cfg.bundle(pod, ctr)
	var b wire.Bundle
	data, err := os.ReadFile(filepath.Join(dir, "bundle"))
	if err == nil {
		err = json.Unmarshal(data, &b)
	}
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	var w *os.File
	switch {
	case b.Terminal:
		w, err = r.Console(ctx, pod, ctr)
	case b.Stdin:
		w, err = os.OpenFile(filepath.Join(dir, "stdin"), os.O_WRONLY|unix.O_NONBLOCK, 0)
	default:
		return nil
	}
	if err != nil {
		return fmt.Errorf("attach standard input: %w", err)
	}
	go func() {
		_, err := io.Copy(w, in)
		_ = w.Close()
		if b.StdinOnce && (err == nil || errors.Is(err, io.EOF)) {
			r.closeStdin(context.WithoutCancel(ctx), pod, ctr)
		}
	}()
	return nil
}

// closeStdin lets the container see the end of its input, also while another monitor takes over.
func (r *Runtime) closeStdin(ctx context.Context, pod, ctr string) {
	for range 50 {
		r.link(pod).endStdin(ctr)
		_, err := r.call(ctx, pod, wire.Request{Op: wire.CloseStdin, Container: ctr})
		if err == nil || !errors.Is(err, errNoMonitor) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Console returns the master of a container's terminal, for the caller to close.
func (r *Runtime) Console(ctx context.Context, pod, ctr string) (*os.File, error) {
	cl, err := r.client(pod)
	if err != nil {
		return nil, err
	}
	a, err := cl.ask(ctx, wire.Request{Op: wire.Console, Container: ctr})
	if err != nil {
		return nil, err
	}
	if len(a.fds) != 1 {
		closeFiles(a.fds)
		return nil, fmt.Errorf("the monitor sent %d descriptors for a terminal", len(a.fds))
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
	return unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
}
