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

	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/layer"
	"berth/internal/image/unpack"
	"berth/internal/limit"
)

// unpacker is one process.
type unpacker struct {
	root    string // of the store
	process *os.Process
	control *os.File
	errors  *os.File
	lowers  []*os.File    // the trees that it has, the topmost first
	trees   []layer.Lower // what these trees are of
	window  int64         // the largest window that it has been given, in bytes
	had     []digest.Digest
	end     sync.Once
	ended   atomic.Bool // it was killed, or has ended
	expiry  *time.Timer // set while it is idle

	// The rest belongs to the present layer.
	job     unpack.Job
	dir     *os.File // through a detached mount
	blob    *os.File // the blob is written to it; may be nil
	fed     atomic.Bool
	release func()
	failed  func()
	use     *imageUse
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
	p.trees = t.lowers
	bring(&t.job, t.lowers)
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

// place opens the directory of a task's layer. If the process may get other layers later, it is opened through a mount
// of its own, which can be made read-only afterwards.
func (u *unpackers) place(t task) (*os.File, error) {
	if t.job.More {
		return detach(t.dir, 0)
	}
	return openDirIn(u.ingest, filepath.Base(t.dir))
}

// detachAll opens trees as read-only detached mounts.
func detachAll(lowers []layer.Lower) (trees []*os.File, err error) {
	for _, one := range lowers {
		tree, err := detach(one.Path, unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			closeAll(trees)
			return nil, err
		}
		trees = append(trees, tree)
	}
	return trees, nil
}

// bring notes in a job which trees come with it.
func bring(job *unpack.Job, lowers []layer.Lower) {
	job.Lowers, job.Unmarked = len(lowers), nil
	for _, one := range lowers {
		job.Unmarked = append(job.Unmarked, one.Unmarked)
	}
}

// hand gives another task to an idle process. If that fails, the task is unchanged.
func (p *unpacker) hand(t task) error {
	dir, err := detach(t.dir, 0)
	if err != nil {
		return err
	}
	p.dir = dir
	new := t.lowers[:len(t.lowers)-len(p.trees)]
	fresh, err := detachAll(new)
	if err != nil {
		return err
	}
	p.lowers, p.trees = append(fresh, p.lowers...), t.lowers
	bring(&t.job, new)
	if err := t.job.Send(p.control, t.in, dir, fresh); err != nil {
		return err
	}
	closeAll([]*os.File{t.in})
	p.begin(t)
	return nil
}

// isQuiet reports whether an idle process lives and has sent nothing.
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

// begin notes what the process is given for a task.
func (p *unpacker) begin(t task) {
	p.job, p.blob, p.failed, p.use = t.job, t.to, t.failed, useOf(t.layer)
	p.fed.Store(t.to == nil)
	p.release = func() {}
}

// suits reports whether the process may be given a task: all that it had before, and all trees that it can read, must
// be below the layer or the layer itself. If an earlier layer has subverted the process, it can then change no more
// than what it could change anyway, as a layer of the same image.
func (p *unpacker) suits(t task) bool {
	finalizes := 0 // a layer to be finalized may be of the blob that the process has unpacked
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

// seal makes the directory of the layer read-only for the process. It fails while the process has a file there open for
// writing.
func (p *unpacker) seal() error {
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	err := unix.MountSetattr(int(p.dir.Fd()), "", unix.AT_EMPTY_PATH, attr)
	closeAll([]*os.File{p.dir})
	p.dir = nil
	return err
}

// blobPipe makes a pipe for a blob of the given size.
func blobPipe(size int64) (in, out *os.File, err error) {
	if in, out, err = os.Pipe(); err != nil || size <= pipeSize {
		return in, out, err
	}
	// With a larger pipe both sides work at the same time. If the kernel refuses, the default size works too.
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

// errorsFile returns a file in memory for the stderr of a process. It is sealed against growing.
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

// work feeds the blob to the process, answers its questions and returns its answer. Afterwards the process has ended,
// or is idle and can no longer write to the layer.
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
				p.kill() // it will get no other task, or it has more memory than an idle process should keep
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
		p.kill() // a process that has not answered ends by itself, and its status tells why
	}
	status, err := p.wait()
	p.ended.Store(true)
	switch {
	case err != nil:
		return nil, err
	case e.err != nil && !errors.Is(e.err, errSilent): // the process has refused the layer
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

// sharedError is the failure of a process that has had other layers before, which may have caused it. The layer is made
// once more, in a process of its own.
type sharedError struct{ error }

func (e *sharedError) Unwrap() error { return e.error }

// afterOthers marks the error of a process that has had layers before. A limit on what all layers of the image use is
// none of them: it stays used up, so that the layer would be fetched again in vain.
func afterOthers(err error, after []digest.Digest) error {
	var over *limit.Error
	if len(after) == 0 || errors.As(err, &over) && isOfImage(over.Budget) {
		return err
	}
	return &sharedError{err}
}

// explain adds the file system and a remedy to the error of a process that stopped because too little space is free.
func (p *unpacker) explain(err error) error {
	var failed *unpack.Error
	if !errors.As(err, &failed) || !failed.Low {
		return err
	}
	return &diskspace.Error{Err: err, Text: p.job.Limits.Floor.Advice(p.root, catalog.ToMakeRoom)}
}

// feed copies the blob. If the process stops reading, feed returns no error, because the process will tell the reason.
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
			p.kill() // before the pipe is closed, which the process would take for the end of the blob
			return err
		}
	}
}

const feedSize = 128 << 10

var feedBuffers = sync.Pool{New: func() any { return new([feedSize]byte) }}

// errSilent is returned when a process ended without an answer.
var errSilent = errors.New("no answer")

// listen answers questions of the process until its answer comes.
func (p *unpacker) listen(ctx context.Context) (*unpack.Answer, error) {
	for buf := unpack.MessageBuffer(); ; {
		m, err := unpack.Receive(p.control, buf)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, os.ErrClosed) ||
			errors.Is(err, os.ErrDeadlineExceeded) {
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

// decide answers one question of the process.
func (p *unpacker) decide(ctx context.Context, m unpack.Message) (bool, error) {
	switch {
	case m.Opaque != nil && m.Opaque.Tree >= 0 && m.Opaque.Tree < len(p.lowers) && len(m.Opaque.Path) <= 4096:
		return p.use.isOpaque(int(p.lowers[m.Opaque.Tree].Fd()), string(m.Opaque.Path))
	case m.Window > 0:
		return true, p.lend(ctx, m.Window)
	}
	return false, &UnpackerError{"the unpacker asks for what there is not", errdefs.ErrFailedPrecondition}
}

// lend waits until the memory for a zstd window is free, and lends it to the process.
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

// kill kills the process. It may have ended before. Nobody waits for it to read or write any more: a process that hangs
// in the kernel does neither, and keeps its files open.
func (p *unpacker) kill() {
	p.end.Do(func() {
		p.ended.Store(true)
		_ = p.process.Kill()
		_ = p.control.SetReadDeadline(time.Now())
		if p.blob != nil {
			_ = p.blob.SetWriteDeadline(time.Now())
		}
	})
}

// killTimeout is how long a killed process may take to end. One that takes longer hangs in the kernel.
const killTimeout = 10 * time.Second

// exitTimeout is how long a process may take to end after it has closed its socket.
const exitTimeout = 2 * time.Second

// hungError is returned when a process was killed and did not end, because it hangs in the kernel. So may whoever
// touches its directory.
type hungError struct{ error }

func (e *hungError) Unwrap() error { return e.error }

// wait waits until the process has ended: until then it may write to its directory.
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
	return nil, &hungError{&UnpackerError{text, errdefs.ErrUnavailable}}
}

// died returns the error of a process that ended without an answer.
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

// ranOut reports whether the Go runtime ended the process because it got no memory. The collector then prints a
// message, or faults; a fault of other code is printed as a panic of a numbered goroutine.
func ranOut(stderr string) bool {
	faulted := strings.HasPrefix(stderr, "SIGSEGV") && strings.Contains(stderr, "goroutine 0 ")
	return faulted || strings.Contains(stderr, "out of memory") || strings.Contains(stderr, "cannot allocate memory")
}

// stderr returns the beginning of what the process wrote to stderr.
func (p *unpacker) stderr() string {
	buf := make([]byte, 1<<10)
	n, _ := p.errors.ReadAt(buf, 0)
	buf, _, _ = bytes.Cut(buf[:n], []byte{0})
	return fail.Clip(strings.TrimSpace(string(buf)))
}

// dismiss ends an idle process and waits until it is gone.
func (p *unpacker) dismiss() {
	p.kill()
	_, _ = p.wait() // an idle process has no writable directory, so one that hangs does no harm
	p.close()
}

// close closes the files of a process that has ended.
func (p *unpacker) close() {
	closeAll(append([]*os.File{p.control, p.errors, p.dir}, p.lowers...))
}
