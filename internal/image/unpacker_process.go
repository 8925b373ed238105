package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/layer"
	"berth/internal/image/unpack"
	"berth/internal/room"
)

// unpacker is one process.
type unpacker struct {
	root    string // of the store
	process *os.Process
	control *os.File
	errors  *os.File
	lowers  []*os.File // the trees that it has, the topmost first
	trees   []string   // their paths
	window  int64      // the largest that it has been given, in bytes
	had     []digest.Digest
	end     sync.Once
	ended   atomic.Bool // it was killed, or has gone
	expiry  *time.Timer // while it waits

	// What it has for the layer of this moment.
	job     unpack.Job
	dir     *os.File // a mount of its own
	blob    *os.File // where the blob is written to; nil when there is none
	fed     atomic.Bool
	release func()
	failed  func()
}

// start starts a process for a task.
func (u *unpackers) start(t task) (_ *unpacker, err error) {
	own := []*os.File{t.in} // the process's ends
	p := &unpacker{root: filepath.Dir(u.ingest.Name())}
	p.begin(t)
	defer func() {
		closeAll(own)
		if err != nil {
			closeAll([]*os.File{p.blob})
			p.close()
			err = &UnpackerError{"start the unpacker: " + err.Error(), err}
		}
	}()
	layerDir, err := u.place(t)
	if err != nil {
		return nil, err
	}
	if t.job.More {
		p.dir = layerDir
	} else {
		own = append(own, layerDir)
	}
	if p.lowers, err = detachAll(t.lowers); err != nil {
		return nil, err
	}
	p.trees, t.job.Lowers = t.lowers, len(p.lowers)
	theirs, ours, err := controlPair()
	if err != nil {
		return nil, err
	}
	own, p.control = append(own, theirs), ours
	if p.errors, err = errorsFile(); err != nil {
		return nil, err
	}
	args, err := t.job.Arguments()
	if err != nil {
		return nil, err
	}
	if err := catalog.At("unpack.start", func() (err error) {
		files := unpack.Files(t.in, p.errors, layerDir, theirs, p.lowers)
		p.process, err = u.crew.Start(args, t.job.Environment(), files)
		return err
	}); err != nil {
		return nil, err
	}
	return p, nil
}

// place opens the directory of a task's layer. For a process to which other layers come it is a mount of its own, which
// can be taken from it.
func (u *unpackers) place(t task) (*os.File, error) {
	if t.job.More {
		return detach(t.dir, 0)
	}
	return openDirIn(u.ingest, filepath.Base(t.dir))
}

// detachAll opens trees as read-only detached mounts.
func detachAll(paths []string) (trees []*os.File, err error) {
	for _, path := range paths {
		tree, err := detach(path, unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			closeAll(trees)
			return nil, err
		}
		trees = append(trees, tree)
	}
	return trees, nil
}

// hand gives another task to a process that waits. The task is as it was when that fails.
func (p *unpacker) hand(t task) error {
	dir, err := detach(t.dir, 0)
	if err != nil {
		return err
	}
	p.dir = dir
	fresh, err := detachAll(t.lowers[:len(t.lowers)-len(p.trees)])
	if err != nil {
		return err
	}
	p.lowers, p.trees = append(fresh, p.lowers...), t.lowers
	t.job.Lowers = len(fresh)
	if err := t.job.Send(p.control, t.in, dir, fresh); err != nil {
		return err
	}
	closeAll([]*os.File{t.in})
	p.begin(t)
	return nil
}

// isQuiet reports whether a process that waits is there, and says nothing.
func (p *unpacker) isQuiet() bool {
	conn, err := p.control.SyscallConn()
	if err != nil {
		return false
	}
	heard := 1
	err = conn.Control(func(fd uintptr) {
		heard, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return err == nil && heard == 0
}

// begin notes what the process has for a task.
func (p *unpacker) begin(t task) {
	p.job, p.blob, p.failed = t.job, t.to, t.failed
	p.fed.Store(t.to == nil)
	p.release = func() {}
}

// suits reports whether the process may be given a task: whatever it had before is below the layer, or the layer
// itself, and so are the trees that it can read. A layer that has taken it over can do then what it could do by what it
// has in the same image.
func (p *unpacker) suits(t task) bool {
	finalizes := 0 // what is finalized may be of the blob that the process has unpacked
	if t.job.Finalize {
		finalizes = 1
	}
	new := len(t.lowers) - len(p.trees)
	if p.job.Limits != t.job.Limits || new < 0 || new > unpack.MostTrees || !slices.Equal(t.lowers[new:], p.trees) {
		return false
	}
	for _, blob := range p.had {
		below := func(w layerRequest) bool { return w.desc.Digest == blob }
		if !slices.ContainsFunc(t.layer.below, below) && (finalizes == 0 || !below(t.layer)) {
			return false
		}
	}
	return true
}

// seal takes the directory of the layer from the process: it may read there, and nothing else. It fails while the
// process has a file there open for writing.
func (p *unpacker) seal() error {
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	err := unix.MountSetattr(int(p.dir.Fd()), "", unix.AT_EMPTY_PATH, attr)
	closeAll([]*os.File{p.dir})
	p.dir = nil
	return err
}

// blobPipe makes the pipe of a blob of that size.
func blobPipe(size int64) (in, out *os.File, err error) {
	if in, out, err = os.Pipe(); err != nil || size <= pipeSize {
		return in, out, err
	}
	// Half of its pages at a time each side has something to do. What the kernel refuses it is no worse without.
	_, _ = unix.FcntlInt(out.Fd(), unix.F_SETPIPE_SZ, largePipe)
	return in, out, unix.SetNonblock(int(out.Fd()), true)
}

const (
	pipeSize  = 64 << 10 // the default size of a pipe
	largePipe = 1 << 20
)

func controlPair() (theirs, ours *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "control")
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		return theirs, nil, err
	}
	return theirs, os.NewFile(uintptr(fds[0]), "control"), nil
}

// errorsFile is memory for what a process says of its own failure. It cannot grow, whoever writes.
func errorsFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("errors", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "errors")
	if err := f.Truncate(8 << 10); err != nil {
		return f, err
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	return f, err
}

// work feeds the blob to the process, answers its questions and returns its answer. Then the process is gone, or waits
// for another task and cannot write to the layer any more.
func (p *unpacker) work(ctx context.Context, t task) (*unpack.Answer, error) {
	stop := context.AfterFunc(ctx, p.kill)
	defer stop()
	defer func() { p.release() }()
	after := p.had
	p.had = append(slices.Clone(after), t.layer.desc.Digest)
	type end struct {
		answer *unpack.Answer
		err    error
	}
	said := make(chan end, 1)
	go func() {
		answer, err := p.listen(ctx)
		if !errors.Is(err, errSilent) {
			if err != nil || !p.job.More || !p.fed.Load() || p.window > layer.OrdinaryWindow {
				p.kill() // it has nothing more to do, or more memory than it should keep
			}
			if err != nil {
				p.failed()
			}
		}
		said <- end{answer, err}
	}()
	fed := p.feed(t.blob)
	e := <-said
	if e.err == nil && fed == nil && stop() && !p.ended.Load() && p.seal() == nil {
		return e.answer, nil
	}
	if e.err == nil {
		p.kill() // whoever has not answered ends by itself, and its status says why
	}
	status, err := p.wait()
	p.ended.Store(true)
	switch {
	case err != nil:
		return nil, err
	case e.err != nil && !errors.Is(e.err, errSilent): // it has judged what it had
		return nil, afterOthers(p.explain(e.err), after)
	case fed != nil:
		return nil, fed
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(e.err, errSilent):
		return nil, afterOthers(p.died(status), after)
	}
	return e.answer, e.err
}

// sharedError is how a process failed that has had other layers before: their doing, maybe. The layer is made once
// more, by a process of its own.
type sharedError struct{ error }

func (e *sharedError) Unwrap() error { return e.error }

// afterOthers marks the error of a process that has had layers before.
func afterOthers(err error, after []digest.Digest) error {
	if len(after) == 0 {
		return err
	}
	return &sharedError{err}
}

// explain adds to the error of a process that left off because too little is free where it is, and what to do.
func (p *unpacker) explain(err error) error {
	var failed *unpack.Error
	if !errors.As(err, &failed) || !failed.Low {
		return err
	}
	return &room.Error{Err: err, Text: p.job.Limits.Floor.Advice(p.root, catalog.ToMakeRoom)}
}

// feed copies the blob. That the process reads no more is no error: it has a reason, and says it.
func (p *unpacker) feed(blob io.Reader) error {
	if p.blob == nil {
		return nil
	}
	defer p.blob.Close()
	buf := feedBuffers.Get().(*[feedSize]byte)
	defer feedBuffers.Put(buf)
	for {
		n, err := blob.Read(buf[:])
		if n > 0 {
			if _, werr := p.blob.Write(buf[:n]); werr != nil {
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			p.fed.Store(true)
			return nil
		}
		if err != nil {
			p.kill() // before the pipe is closed, for it must not take this for the end of the blob
			return err
		}
	}
}

const feedSize = 128 << 10

var feedBuffers = sync.Pool{New: func() any { return new([feedSize]byte) }}

// errSilent says that a process ended without an answer.
var errSilent = errors.New("no answer")

// listen answers questions until the process answers.
func (p *unpacker) listen(ctx context.Context) (*unpack.Answer, error) {
	for buf := unpack.MessageBuffer(); ; {
		m, err := unpack.Receive(p.control, buf)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, os.ErrClosed) {
			return nil, errSilent
		}
		if err != nil {
			return nil, &UnpackerError{err.Error(), errdefs.ErrFailedPrecondition}
		}
		switch {
		case m.Answer != nil:
			return m.Answer, nil
		case m.Failure != nil:
			return nil, m.Failure.Err()
		}
		yes, err := p.decide(ctx, m)
		if err != nil {
			return nil, err
		}
		if err := unpack.Reply(p.control, yes); err != nil {
			return nil, errSilent
		}
	}
}

// decide answers a question.
func (p *unpacker) decide(ctx context.Context, m unpack.Message) (bool, error) {
	switch {
	case m.Opaque != nil && m.Opaque.Tree >= 0 && m.Opaque.Tree < len(p.lowers) && len(m.Opaque.Path) <= 4096:
		return layer.IsOpaque(int(p.lowers[m.Opaque.Tree].Fd()), string(m.Opaque.Path)), nil
	case m.Window > 0:
		return true, p.lend(ctx, m.Window)
	}
	return false, &UnpackerError{"the unpacker asks for what there is not", errdefs.ErrFailedPrecondition}
}

// lend gives the process the memory for a zstd window, once all others leave as much.
func (p *unpacker) lend(ctx context.Context, size int64) error {
	p.release()
	p.release = func() {}
	release, err := layer.AcquireWindow(ctx, size)
	if err != nil {
		return err
	}
	p.release, p.window = release, max(p.window, size)
	return unpack.Widen(p.process.Pid, p.job.Memory, p.window)
}

// kill ends the process. It may have ended before.
func (p *unpacker) kill() {
	p.end.Do(func() {
		p.ended.Store(true)
		_ = p.process.Kill()
	})
}

// killTimeout is how long a process that was killed may take to go. What takes longer hangs in the kernel.
const killTimeout = 10 * time.Second

// exitTimeout is how long a process may live on that has closed its socket.
const exitTimeout = 2 * time.Second

// wait sees the process be gone: until then it may write to its directory.
func (p *unpacker) wait() (*os.ProcessState, error) {
	type end struct {
		state *os.ProcessState
		err   error
	}
	gone := make(chan end, 1)
	go func() {
		state, err := p.process.Wait()
		gone <- end{state, err}
	}()
	for _, patience := range []time.Duration{exitTimeout, killTimeout} {
		select {
		case e := <-gone:
			return e.state, e.err
		case <-time.After(patience):
			p.kill()
		}
	}
	text := fmt.Sprintf("the unpacker, process %d, does not die of SIGKILL: it hangs in the kernel (see /proc/%d/stack)",
		p.process.Pid, p.process.Pid)
	return nil, &UnpackerError{text, errdefs.ErrUnavailable}
}

// died says why a process ended without an answer.
func (p *unpacker) died(state *os.ProcessState) error {
	stderr := p.stderr()
	text := "the unpacker ended without an answer: " + state.String()
	if stderr != "" {
		text += ": " + stderr
	}
	if ranOut(stderr) || state.ExitCode() < 0 && stderr == "" {
		text += ": the layer needs more memory than an unpacker has, or the node is short of it"
		return &UnpackerError{text, errdefs.ErrResourceExhausted}
	}
	return &UnpackerError{text, errdefs.ErrFailedPrecondition}
}

// ranOut reports whether the Go runtime failed for want of memory. Where its collector gets none it says so, or faults:
// a fault of other code is a panic, of a goroutine that has a number.
func ranOut(stderr string) bool {
	faulted := strings.HasPrefix(stderr, "SIGSEGV") && strings.Contains(stderr, "goroutine 0 ")
	return faulted || strings.Contains(stderr, "out of memory") || strings.Contains(stderr, "cannot allocate memory")
}

// stderr is the beginning of what the process wrote as its errors.
func (p *unpacker) stderr() string {
	buf := make([]byte, 1<<10)
	n, _ := p.errors.ReadAt(buf, 0)
	buf, _, _ = bytes.Cut(buf[:n], []byte{0})
	return fail.Clip(strings.TrimSpace(string(buf)))
}

// dismiss ends a process that waits, and sees it be gone.
func (p *unpacker) dismiss() {
	p.kill()
	_, _ = p.wait() // one that hangs has nothing that it could write to
	p.close()
}

// close closes what there is of a process that is gone.
func (p *unpacker) close() {
	closeAll(append([]*os.File{p.control, p.errors, p.dir}, p.lowers...))
}
