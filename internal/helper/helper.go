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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

// killTimeout is how long processes that were sent SIGKILL may take to go. What takes longer hangs in the kernel.
const killTimeout = 5 * time.Second

// Runner runs helper programs, each in a tracking cgroup of its own. Its methods may be called concurrently.
type Runner struct {
	// Root is the directory of tracking groups that only this runner uses: <tracking>/<instance>/ops.
	Root string

	seq   atomic.Uint64
	mu    sync.Mutex
	stuck map[string][]*cgroup.Group // by name: the groups that SIGKILL did not empty
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
	if err := r.settle(ctx, name); err != nil {
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

// Sweep kills and removes every group that a runner which is gone left below Root. Call it before the first Run.
func (r *Runner) Sweep() error {
	entries, err := os.ReadDir(r.Root)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep helpers: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		name := e.Name()
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i]
		}
		errs = append(errs, r.clear(name, cgroup.At(filepath.Join(r.Root, e.Name()))))
	}
	return errors.Join(errs...)
}

// clear empties and removes a group. One that cannot be emptied is remembered as stuck.
func (r *Runner) clear(name string, group *cgroup.Group) error {
	err := empty(context.Background(), group)
	if err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stuck == nil {
		r.stuck = map[string][]*cgroup.Group{}
	}
	r.stuck[name] = append(r.stuck[name], group)
	return err
}

// settle clears what is stuck under name, or says that it still is.
func (r *Runner) settle(ctx context.Context, name string) error {
	r.mu.Lock()
	groups := append([]*cgroup.Group(nil), r.stuck[name]...)
	r.mu.Unlock()
	for _, g := range groups {
		if err := empty(ctx, g); err != nil {
			return err
		}
		r.forget(name, g)
	}
	return nil
}

func (r *Runner) forget(name string, group *cgroup.Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var rest []*cgroup.Group
	for _, g := range r.stuck[name] {
		if g.Path() != group.Path() {
			rest = append(rest, g)
		}
	}
	if r.stuck[name] = rest; rest == nil {
		delete(r.stuck, name)
	}
}

// empty kills what is in the group and removes it.
func empty(ctx context.Context, g *cgroup.Group) error {
	// A group can be removed exactly when it is empty, so in the common case one call proves and removes it.
	err := g.Remove()
	if err == nil || !errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := g.Kill(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if err := g.WaitEmpty(ctx); err != nil {
		pids, _ := g.Pids()
		return &StuckError{Group: g.Path(), Pids: pids, Cause: err}
	}
	return g.Remove()
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
	err = p.cmd.Start()
	p.streams.started()
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
		Stderr:  p.streams.tail.lines(),
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

// StuckError says that processes did not die of SIGKILL: they hang in the kernel, mostly on a device or a file server
// that does not answer.
type StuckError struct {
	Group string
	Pids  []int
	Cause error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("processes %v of %s do not die of SIGKILL: they hang in the kernel (see /proc/<pid>/stack); free what they wait for, or reboot", e.Pids, e.Group)
}

func (e *StuckError) Unwrap() error { return e.Cause }
