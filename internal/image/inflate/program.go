package inflate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/thread"
)

// Program is an igzip on this node. It may be started by many at once.
type Program struct {
	// Path is that of the program.
	Path string
	// Confine begins the command line, and ends with starting the rest: the program that takes rights away.
	Confine []string
	// Run runs it, as helper.Runner.RunStarted does.
	Run Run
	// Log hears when the program is given up.
	Log *slog.Logger

	mu      sync.Mutex // guards what follows
	tried   bool
	failed  int // streams in a row that it did not inflate, though the library did
	givenUp bool
}

// Run runs a program for an operation, and tells its process when that has begun.
type Run func(ctx context.Context, name string, cmd *exec.Cmd, started func(pid int) error) error

// New returns the program at path, or igzip where path is empty and the node has it.
func New(path string, run Run, log *slog.Logger) (*Program, error) {
	path, confine, err := Find(path)
	if err != nil {
		return nil, err
	}
	return &Program{Path: path, Confine: append([]string{confine}, limits...), Run: run, Log: log}, nil
}

// Find looks for the program, igzip on the path where path is empty, and for the one that confines it.
func Find(path string) (program, confine string, err error) {
	if path == "" {
		path = "igzip"
	}
	if program, err = exec.LookPath(path); err == nil {
		confine, err = exec.LookPath("prlimit")
	}
	return program, confine, err
}

// MaxFailures is how many streams in a row the program may leave to the library before it is given up.
const MaxFailures = 3

// Usable reports whether the program inflates what it should. The first call tries it; ctx ends the trial.
func (p *Program) Usable(ctx context.Context) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.tried && !p.givenUp {
		err := p.try(ctx)
		if ctx.Err() != nil {
			return false
		}
		p.tried = true
		if err != nil {
			p.giveUpLocked(err)
		}
	}
	return !p.givenUp
}

// try inflates two members.
func (p *Program) try(ctx context.Context) error {
	s, err := p.Start(ctx, io.MultiReader(member([]byte("one")), member([]byte("two"))))
	if err != nil {
		return err
	}
	defer s.Close()
	got, err := io.ReadAll(s)
	if err == nil && string(got) != "onetwo" {
		err = fmt.Errorf("it inflated two members to %q", got)
	}
	return err
}

// Inflated notes that the program inflated a stream, or with an error that the library had to. It is given up when that
// happens again and again: each time costs a second transfer.
func (p *Program) Inflated(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.failed = 0
		return
	}
	if p.failed++; p.failed >= MaxFailures && !p.givenUp {
		p.giveUpLocked(err)
	}
}

func (p *Program) giveUpLocked(err error) {
	p.givenUp = true
	p.Log.Warn("gzip layers are inflated by the library from now on: mend the program, or what images.gunzip says, "+
		"and restart the daemon", "program", p.Path, "error", err)
}

// Start gives r, a gzip stream, to the program. On an error nothing of r has been read. Else the caller closes the
// stream, and does not touch r until then. Nothing of the program is left after ctx has ended.
func (p *Program) Start(ctx context.Context, r io.Reader) (*Stream, error) {
	s := &Stream{mark: newMark(), fed: make(chan struct{}), ended: make(chan struct{})}
	in, feed, err := wide()
	if err != nil {
		return nil, fmt.Errorf("inflate by %s: %w", p.Path, err)
	}
	plain, out, err := wide()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("inflate by %s: %w", p.Path, err), in.Close(), feed.Close())
	}
	s.plain = plain
	ctx, s.cancel = context.WithCancel(ctx)
	begun := make(chan bool, 2) // the second word is not waited for
	go func() {
		defer close(s.ended)
		s.ran = p.run(ctx, in, out, func() { begun <- true })
		begun <- false
	}()
	if !<-begun {
		close(s.fed)
		return nil, errors.Join(s.Wait(), s.Close(), feed.Close())
	}
	go s.feed(feed, r)
	return s, nil
}

// nobody is the user that owns nothing.
const nobody = 65534

// run runs the program from one pipe to another, which it closes, and calls begun when its limits are set: until then
// it gets nothing of the image.
func (p *Program) run(ctx context.Context, in, out *os.File, begun func()) error {
	cmd := exec.Command(p.Confine[0], append(p.Confine[1:len(p.Confine):len(p.Confine)], p.Path, "-d", "-c")...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout = "/", []string{}, in, out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Setsid: true, Cloneflags: unix.CLONE_NEWNET,
	}
	closeBoth := sync.OnceValue(func() error { return errors.Join(in.Close(), out.Close()) })
	defer func() { _ = closeBoth() }()
	return thread.Run(func() error {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("forbid new privileges: %w", err)
		}
		return p.Run(ctx, "gunzip", cmd, func(pid int) error {
			_ = closeBoth()
			if err := yield(pid); err != nil {
				return err
			}
			begun()
			return nil
		})
	})
}

// limits has prlimit(1) lower the limits of the program: it maps some 8 MiB, opens three libraries, and writes to a
// pipe. The daemon cannot do that from outside without CAP_SYS_RESOURCE, nor between fork and exec.
var limits = []string{
	"--as=268435456", "--core=0", "--fsize=0", "--nofile=16", "--nproc=0", "--memlock=0", "--msgqueue=0",
}

// yield has the kernel end the program first where memory is short. It has the daemon's own place else, which is the
// last.
func yield(pid int) error {
	return os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte("1000"), 0)
}

// pipeBytes is how much a pipe holds: with the usual 64 KiB the program and those beside it would wait for each other
// sixteen times as often.
const pipeBytes = 1 << 20

// wide is a pipe of pipeBytes, where the node allows that.
func wide() (r, w *os.File, err error) {
	if r, w, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	conn, err := w.SyscallConn()
	if err == nil {
		_ = conn.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeBytes) })
	}
	return r, w, nil
}
