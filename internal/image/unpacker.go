package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/image/layer"
	"berth/internal/image/unpack"
	"berth/internal/room"
)

// Crew starts processes of the program berth-unpack; helper.Crew does.
type Crew interface {
	Start(args, env []string, files []*os.File) (*os.Process, error)
}

// jobOf is what an unpacker may use for a layer.
func jobOf(now *settings) unpack.Job {
	limits := now.limits()
	return unpack.Job{Limits: limits, Memory: unpack.MemoryFor(limits)}
}

// settleLayer settles a layer over the trees lowers, the topmost first, in a process of its own where there are any.
func settleLayer(ctx context.Context, s *pipeline, raw *rawLayer, lowers []string) error {
	if s.unpackers == nil {
		return layer.Settle(ctx, raw.dir, raw.result, lowers)
	}
	return s.unpackers.settle(ctx, raw.dir, raw.result, lowers, jobOf(s.now()))
}

// unpackers has a process of its own for each layer that is unpacked or settled.
type unpackers struct {
	crew    Crew
	ingest  *os.File // ingest/, as the processes get directories from it
	plain   bool     // this machine lets nobody make mounts that are nowhere in its tree of mounts
	running atomic.Int32
}

// newUnpackers has a crew unpack what lies in ingest/. Without a crew there are none.
func newUnpackers(crew Crew, ingest string) (*unpackers, error) {
	if crew == nil {
		return nil, nil
	}
	dir, err := detach(ingest, 0)
	plain := err != nil
	if plain {
		// An old kernel, or a daemon in a container: then only the filter keeps devices and programs from being used.
		dir, err = openPlain(ingest)
	}
	return &unpackers{crew: crew, ingest: dir, plain: plain}, err
}

func (u *unpackers) close() {
	if u != nil {
		_ = u.ingest.Close()
	}
}

// UnpackerError says that the process of a layer ended otherwise than by an answer.
type UnpackerError struct {
	Text string
	kind error
}

func (e *UnpackerError) Error() string { return e.Text }
func (e *UnpackerError) Unwrap() error { return e.kind }

// unpack has a blob of that size be unpacked into dir, which is in ingest/, and returns what became of it and the
// digest of its tar, as the process says them. failed hears that the blob is of no use, while more of it may be waited
// for.
func (u *unpackers) unpack(
	ctx context.Context, blob io.Reader, size int64, dir string, job unpack.Job, failed func(),
) (*layer.Result, string, error) {
	job.Threads = 1
	if size > manyThreads {
		job.Threads = 3 // inflate, digest, unpack
	}
	in, out, err := blobPipe(size)
	if err != nil {
		return nil, "", &UnpackerError{"start the unpacker: " + err.Error(), err}
	}
	answer, err := u.answer(ctx, task{job: job, dir: dir, in: in, blob: blob, to: out, failed: failed})
	if err != nil {
		return nil, "", err
	}
	return answer.Result, answer.Diff, nil
}

// unpackPlain has the tar be unpacked that a program writes to a pipe, which it closes. It returns also what was behind
// the tar.
func (u *unpackers) unpackPlain(
	ctx context.Context, tar *os.File, dir string, job unpack.Job, failed func(),
) (res *layer.Result, diff string, behind []byte, err error) {
	job.Threads = 2 // digest, unpack
	answer, err := u.answer(ctx, task{job: job, dir: dir, in: tar, failed: failed})
	if err != nil {
		return nil, "", nil, err
	}
	return answer.Result, answer.Diff, answer.Mark, nil
}

// task is what a process has to do.
type task struct {
	job    unpack.Job
	dir    string     // of the layer
	lowers []*os.File // trees of the layers below
	in     *os.File   // what the process reads; it is closed when that has it
	blob   io.Reader  // what goes to the process, by way of to; nil where nothing does
	to     *os.File
	failed func()
}

// answer has a process do a task, and accepts what it left. The process has threads for its stages as far as those that
// work already leave processors: threads that wait for each other cost more than stages that take turns.
func (u *unpackers) answer(ctx context.Context, t task) (*unpack.Answer, error) {
	running := u.running.Add(1)
	defer u.running.Add(-1)
	t.job.Threads = max(1, min(t.job.Threads, runtime.GOMAXPROCS(0)/int(running)))
	p, err := u.start(t)
	if err != nil {
		return nil, err
	}
	answer, err := p.work(ctx, t.blob)
	if err != nil {
		return nil, err
	}
	return answer, u.accept(ctx, t.dir, t.job, answer)
}

// manyThreads is the size of a blob from which on its stages gain from running side by side.
const manyThreads = 512 << 10

// settle has the layer in dir be settled over the trees lowers, the topmost first.
func (u *unpackers) settle(ctx context.Context, dir string, res *layer.Result, lowers []string, job unpack.Job) error {
	if res.Independent() {
		return nil
	}
	if u.plain {
		return u.settleHere(ctx, dir, res, lowers, job)
	}
	trees := make([]*os.File, len(lowers))
	defer closeAll(trees)
	for i, lower := range lowers {
		var err error
		if trees[i], err = detach(lower, unix.MOUNT_ATTR_RDONLY); err != nil {
			return err
		}
	}
	job.Settle, job.Lowers, job.Threads = true, len(lowers), 1
	in, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	answer, err := u.answer(ctx, task{job: job, dir: dir, lowers: trees, in: in, failed: func() {}})
	if err != nil {
		return err
	}
	res.Bytes, res.Inodes, res.Waits = answer.Result.Bytes, answer.Result.Inodes, false
	res.Unsupported += answer.Result.Unsupported
	return nil
}

// settleHere settles in this process: on a machine that cannot give another one the layers below without letting it
// write to them.
func (u *unpackers) settleHere(
	ctx context.Context, dir string, res *layer.Result, lowers []string, job unpack.Job,
) error {
	loaded, err := layer.LoadResult(ctx, dir, job.Limits)
	if err != nil {
		return err
	}
	if err := layer.Settle(ctx, dir, loaded, lowers); err != nil {
		return err
	}
	res.Bytes, res.Inodes, res.Waits = loaded.Bytes, loaded.Inodes, false
	return nil
}

// accept judges what a process left in dir, and does what it could not.
func (u *unpackers) accept(ctx context.Context, dir string, job unpack.Job, a *unpack.Answer) error {
	if a.Result == nil {
		return &UnpackerError{"the unpacker answers without a result", errdefs.ErrFailedPrecondition}
	}
	if err := plausible(a.Result, job.Limits); err != nil {
		return err
	}
	if err := layer.Inspect(dir); err != nil {
		return err
	}
	return at("unpack.grant", func() error {
		lost, err := layer.Grant(ctx, dir, job.Limits)
		a.Result.Unsupported += lost
		return err
	})
}

// plausible refuses sizes that no layer within the limits has: they are added up over all layers.
func plausible(r *layer.Result, lim layer.Limits) error {
	most := 2*uint64(lim.Bytes) + 1<<30 // a skeleton may have as much again as the files
	if r.Bytes > most || r.Inodes > most/4096 || r.Unsupported < 0 {
		text := fmt.Sprintf("the unpacker says that the layer has %d bytes in %d files, beyond every limit",
			r.Bytes, r.Inodes)
		return &UnpackerError{text, errdefs.ErrFailedPrecondition}
	}
	return nil
}

// unpacker is one process.
type unpacker struct {
	root    string // of the store
	process *os.Process
	control *os.File
	blob    *os.File // where the blob is written to; nil when there is none
	errors  *os.File
	lowers  []*os.File
	job     unpack.Job
	end     sync.Once
	release func()
	failed  func()
}

// start starts a process for a task.
func (u *unpackers) start(t task) (_ *unpacker, err error) {
	own := []*os.File{t.in} // the process's ends
	p := &unpacker{
		root: filepath.Dir(u.ingest.Name()), lowers: t.lowers, job: t.job, blob: t.to, release: func() {}, failed: t.failed,
	}
	defer func() {
		closeAll(own)
		if err != nil {
			closeAll([]*os.File{p.blob, p.control, p.errors})
			err = &UnpackerError{"start the unpacker: " + err.Error(), err}
		}
	}()
	layerDir, err := openDirIn(u.ingest, filepath.Base(t.dir))
	if err != nil {
		return nil, err
	}
	own = append(own, layerDir)
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
	if err := at("unpack.start", func() (err error) {
		files := unpack.Files(t.in, p.errors, layerDir, theirs, t.lowers)
		p.process, err = u.crew.Start(args, t.job.Environment(), files)
		return err
	}); err != nil {
		return nil, err
	}
	return p, nil
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
	pipeSize  = 64 << 10 // of a pipe that nobody has changed
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

// work feeds the blob to the process, answers its questions and returns its answer. The process is gone then.
func (p *unpacker) work(ctx context.Context, blob io.Reader) (*unpack.Answer, error) {
	defer p.close()
	stop := context.AfterFunc(ctx, p.kill)
	defer stop()
	type end struct {
		answer *unpack.Answer
		err    error
	}
	said := make(chan end, 1)
	go func() {
		answer, err := p.listen(ctx)
		if !errors.Is(err, errSilent) {
			p.kill() // it has nothing more to do
			if err != nil {
				p.failed()
			}
		}
		said <- end{answer, err}
	}()
	fed := p.feed(blob)
	e := <-said
	status, err := p.wait()
	switch {
	case err != nil:
		return nil, err
	case e.err != nil && !errors.Is(e.err, errSilent): // it has judged what it had
		return nil, p.explain(e.err)
	case fed != nil:
		return nil, fed
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(e.err, errSilent):
		return nil, p.died(status)
	}
	return e.answer, e.err
}

// explain adds to the error of a process that left off because too little is free where it is, and what to do.
func (p *unpacker) explain(err error) error {
	var failed *unpack.Error
	if !errors.As(err, &failed) || !failed.Low {
		return err
	}
	return &room.Error{Err: err, Text: p.job.Limits.Floor.Advice(p.root, toMakeRoom)}
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
	p.release = release
	return unpack.Widen(p.process.Pid, p.job.Memory, size)
}

// kill ends the process. It may have ended before.
func (p *unpacker) kill() {
	p.end.Do(func() { _ = p.process.Kill() })
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

// ranOut says whether the Go runtime failed for want of memory. Where its collector gets none it says so, or faults: a
// fault of other code is a panic, of a goroutine that has a number.
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

func (p *unpacker) close() {
	p.release()
	closeAll([]*os.File{p.control, p.errors})
}
