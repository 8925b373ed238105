// Package helper runs programs for an operation so that nothing of them is left when the call returns: not the program,
// no child of it however far it daemonised itself, and no goroutine on a pipe that one of them holds.
package helper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"berth/internal/cgroup"
	"berth/internal/crun"
)

// Runner runs helper programs, each in a tracking cgroup of its own. Its methods may be called concurrently.
type Runner struct {
	// Root is the directory of tracking groups that only this runner uses: <tracking>/<instance>/ops.
	Root string

	seq atomic.Uint64
	hung
}

// Run starts cmd in the group <Root>/<name>-<seq> and waits until it exits or ctx ends. Then it kills what is left in
// the group, sees it empty and removes it, on success as well as on failure.
//
// cmd.Stdin, Stdout and Stderr are used as exec.Cmd uses them, but a child that keeps them open holds nothing up; a
// Stdin that is not a file must not block. A failure of the program is an *Error. If a process of the group cannot be
// killed, Run returns a *StuckError, and refuses to run anything more under this name until that process is gone, so
// that an undo run under the name of its deed never overlaps with it.
func (r *Runner) Run(ctx context.Context, name string, cmd *exec.Cmd) error {
	return r.RunStarted(ctx, name, cmd, nil)
}

// RunStarted is Run, with a call of started, unless it is nil, when the program has begun and while its process
// cannot have become another's. Its error ends the program.
func (r *Runner) RunStarted(ctx context.Context, name string, cmd *exec.Cmd, started func(pid int) error) error {
	if name == "" || strings.ContainsRune(name, '/') {
		return fmt.Errorf("run helper: %q cannot name a cgroup", name)
	}
	if err := r.clearHung(ctx, name); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return &Error{Program: filepath.Base(cmd.Path), Cause: fmt.Errorf("not started: %w", context.Cause(ctx))}
	}
	group, err := cgroup.Make(r.Root, name+"-"+strconv.FormatUint(r.seq.Add(1), 10))
	if err != nil {
		return fmt.Errorf("run %s: %w", filepath.Base(cmd.Path), err)
	}
	p := &process{cmd: cmd, group: group, started: time.Now(), begun: started}
	runErr := p.run(ctx)
	stuck := r.clear(name, group)
	p.streams.finish()
	if stuck != nil {
		return errors.Join(stuck, runErr)
	}
	return p.describe(runErr)
}

// process is one run of a program.
type process struct {
	cmd     *exec.Cmd
	group   *cgroup.Group
	streams streams
	started time.Time
	begun   func(pid int) error
	killed  bool
}

// run starts the program and returns when it has exited, or when ctx has ended and its group has been sent SIGKILL.
func (p *process) run(ctx context.Context) error {
	if err := p.start(); err != nil {
		return err
	}
	if p.begun != nil {
		if err := p.begun(p.cmd.Process.Pid); err != nil {
			err = errors.Join(err, p.group.Kill())
			_ = p.cmd.Wait()
			return err
		}
	}
	exited := make(chan error, 1)
	go func() { exited <- p.cmd.Wait() }()
	select {
	case err := <-exited:
		return err
	case <-ctx.Done():
	}
	p.killed = true
	if err := p.group.Kill(); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	select {
	case err := <-exited:
		if err == nil {
			p.killed = false
			return nil // it was faster than the kill
		}
	case <-time.After(killTimeout): // clear finds out what is stuck
	}
	return context.Cause(ctx)
}

func (p *process) start() error {
	dir, err := p.group.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := p.streams.attach(p.cmd); err != nil {
		return err
	}
	attr := syscall.SysProcAttr{}
	if p.cmd.SysProcAttr != nil {
		attr = *p.cmd.SysProcAttr
	}
	attr.UseCgroupFD, attr.CgroupFD = true, int(dir.Fd())
	// A signal to the daemon's foreground process group is not meant for its helpers.
	attr.Setpgid = attr.Setpgid || !attr.Setsid
	p.cmd.SysProcAttr = &attr
	err = startAs(p.cmd)
	p.streams.started()
	return err
}

// startAs starts a command. Files beyond the three streams would take the place of what crun is executed by.
func startAs(cmd *exec.Cmd) error {
	path := cmd.Path
	if len(cmd.ExtraFiles) == 0 {
		program, release := crun.Program(path)
		defer release()
		cmd.Path = program
	}
	err := cmd.Start()
	cmd.Path = path
	var failed *os.PathError
	if errors.As(err, &failed) {
		failed.Path = path
	}
	return err
}

// describe makes an *Error of the way the program ended.
func (p *process) describe(err error) error {
	if err == nil {
		return nil
	}
	return &Error{
		Program: filepath.Base(p.cmd.Path),
		Cause:   err,
		Killed:  p.killed,
		Stderr:  p.streams.tail.Lines(),
		Took:    time.Since(p.started),
	}
}

// Error says how a program failed.
type Error struct {
	Program string        // the base name of its path
	Cause   error         // *exec.ExitError, the cause of the context's end, or why it did not start
	Killed  bool          // it was killed because the context ended
	Stderr  string        // the last lines it wrote there, unless Stderr was a file
	Took    time.Duration // from its start to its end
}

func (e *Error) Error() string {
	text := e.Program + ": " + e.Cause.Error()
	if e.Killed {
		text = fmt.Sprintf("%s: killed with its children after %v: %v", e.Program, e.Took.Round(time.Millisecond), e.Cause)
	}
	if e.Stderr != "" {
		text += ": " + e.Stderr
	}
	return text
}

func (e *Error) Unwrap() error { return e.Cause }
