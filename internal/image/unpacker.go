package image

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/image/catalog"
	"berth/internal/image/layer"
	"berth/internal/image/unpack"
	"berth/internal/limit"
)

// Crew starts processes of the program berth-unpack. helper.Crew is one.
type Crew interface {
	Start(args, env []string, files []*os.File) (*os.Process, error)
}

// jobOf returns a job with the limits of a layer.
func jobOf(now *settings) unpack.Job {
	limits := now.limits()
	return unpack.Job{Limits: limits, Memory: unpack.MemoryFor(limits)}
}

// finalizeLayer finalizes a layer over layers of the store, the lowest first, in a process of its own if the store has
// unpackers.
func finalizeLayer(ctx context.Context, s *pipeline, w layerRequest, raw *rawLayer, ids []string) error {
	lowers := lowersOf(s, ids)
	if s.unpackers == nil {
		return finalizeHere(ctx, w, raw.dir, raw.result, lowers)
	}
	err := s.unpackers.finalize(ctx, w, raw.dir, raw.result, lowers, jobOf(s.settings()))
	raw.discard = s.discardAfter(err, w, raw.discard)
	return err
}

// lowersOf returns the trees of layers of the store, the topmost first.
func lowersOf(s *pipeline, ids []string) (lowers []layer.Lower) {
	now := s.catalog.Snapshot()
	for _, id := range slices.Backward(ids) {
		lowers = append(lowers, layer.Lower{Path: s.disk.LayerFS(id), Unmarked: now.Layer(id).Unmarked})
	}
	return lowers
}

// unpackers unpacks and finalizes layers in confined processes.
type unpackers struct {
	crew    Crew
	ingest  *os.File // ingest/, from which the processes get directories
	plain   bool     // the machine does not support detached mounts
	large   *turns   // of layers that get a process each
	small   *turns   // of those that follow each other in one
	tiny    *turns   // of those that are done before another process has started
	running atomic.Int32
	spare   spares
}

// newUnpackers returns the unpackers of a crew for directories in ingest/, or nil without a crew.
func newUnpackers(crew Crew, ingest string) (*unpackers, error) {
	if crew == nil {
		return nil, nil
	}
	dir, err := detach(ingest, 0)
	plain := err != nil
	if plain {
		// An old kernel, or a daemon in a container. Only the seccomp filter keeps devices and programs from being used
		// then.
		dir, err = openPlain(ingest)
	}
	u := &unpackers{crew: crew, ingest: dir, plain: plain}
	n := runtime.GOMAXPROCS(0)
	u.large, u.small, u.tiny = newTurns(n), newTurns(n+1), newTurns(1)
	u.tiny.length = tinyTurn
	return u, err
}

func (u *unpackers) close() {
	if u != nil {
		u.spare.close()
		_ = u.ingest.Close()
	}
}

// turns returns the turns that a layer takes part in. A small one is done so soon that its process waits for the next
// as long as it works. So one more of them is begun than there are processors. A tiny one takes less time than the
// start of a process. So it waits for that of the tiny one before it.
func (u *unpackers) turns(w layerRequest) *turns {
	switch {
	case w.desc.Size <= tinySize:
		return u.tiny
	case w.desc.Size <= shareableSize:
		return u.small
	}
	return u.large
}

// UnpackerError is returned when the process that unpacks a layer ended without a valid answer.
type UnpackerError struct {
	Text string
	kind error
}

func (e *UnpackerError) Error() string { return e.Text }
func (e *UnpackerError) Unwrap() error { return e.kind }

// unpack unpacks the blob of w into dir, a directory in ingest/, in a confined process. It calls failed when the blob
// turns out to be of no use, perhaps before all of it has been read.
func (u *unpackers) unpack(
	ctx context.Context, blob io.Reader, w layerRequest, dir string, job unpack.Job, failed func(),
) (unpacked, error) {
	job.Threads = 1
	if w.desc.Size > manyThreads {
		job.Threads = 3 // inflate, digest, unpack
	}
	in, out, err := blobPipe(w.desc.Size)
	if err != nil {
		return unpacked{}, &UnpackerError{"start the unpacker: " + err.Error(), err}
	}
	job.More = !u.plain && w.desc.Size <= shareableSize
	return u.answer(ctx, task{job: job, layer: w, dir: dir, in: in, blob: blob, to: out, failed: failed})
}

// unpacked is the answer of a process about a layer.
type unpacked struct {
	*unpack.Answer // nil if the process could not be started, or ended without one
	// after are the blobs whose layers the process had before. They may have subverted it.
	after []digest.Digest
}

func (u unpacked) made() *made { return &made{u.Result, u.diff(), u.after} }

// diff returns the digest of the tar, or "" without an answer.
func (u unpacked) diff() digest.Digest {
	if u.Answer == nil {
		return ""
	}
	return digest.Digest(u.Diff)
}

// behind returns the bytes that followed the tar.
func (u unpacked) behind() []byte {
	if u.Answer == nil {
		return nil
	}
	return u.Mark
}

// unpackPlain unpacks the tar that a program writes to a pipe, and closes the pipe. The result has the bytes that
// followed the tar.
func (u *unpackers) unpackPlain(
	ctx context.Context, tar *os.File, w layerRequest, dir string, job unpack.Job, failed func(),
) (unpacked, error) {
	job.Threads = 2 // digest, unpack
	return u.answer(ctx, task{job: job, layer: w, dir: dir, in: tar, failed: failed})
}

// task is one piece of work of a process.
type task struct {
	job    unpack.Job
	layer  layerRequest  // the layer that it is about
	dir    string        // the directory of the layer
	lowers []layer.Lower // trees of the layers below, the topmost first
	in     *os.File      // the input of the process; it is closed when the process has it
	blob   io.Reader     // is copied to the file to, which leads to the process; may be nil
	to     *os.File
	failed func()
}

// answer gives a task to a process, and accepts its result. The process gets as many threads for its stages as there
// are idle processors: threads that wait for each other cost more than stages that take turns on one.
func (u *unpackers) answer(ctx context.Context, t task) (unpacked, error) {
	running := u.running.Add(1)
	defer u.running.Add(-1)
	t.job.Threads = max(1, min(t.job.Threads, runtime.GOMAXPROCS(0)/int(running)))
	p, err := u.engage(t)
	if err != nil {
		return unpacked{}, err
	}
	after := p.had
	answer, err := p.work(ctx, t)
	if err == nil {
		if err = u.accept(ctx, t.dir, t.job, answer); err != nil {
			err = afterOthers(err, after)
		}
	}
	switch {
	case err == nil && !p.ended.Load():
		u.spare.add(p)
	case p.ended.Load():
		p.close()
	default:
		p.dismiss()
	}
	return unpacked{answer, after}, err
}

// engage gives a task to an idle process, or else to a new one.
func (u *unpackers) engage(t task) (*unpacker, error) {
	if t.layer.alone {
		t.job.More = false
	}
	if t.job.More {
		if p := u.spare.take(t); p != nil {
			if p.isQuiet() && p.hand(t) == nil {
				return p, nil
			}
			p.dismiss() // it has died meanwhile: the kernel kills unpackers first when memory is short
		}
	}
	return u.start(t)
}

// shareableSize is the largest blob that is unpacked in a process which may have had other layers. A larger one gets
// its own process: its layer is then the same over any others, so that images can share it.
const shareableSize = 4 << 20

// tinySize is the largest blob that is unpacked in about the time that a process takes to start: 2 ms of a processor,
// or half a megabyte of tar.
const tinySize = 64 << 10

// tinyTurn is how long a tiny layer waits at most: one that was made to take long holds up others no longer.
const tinyTurn = 20 * time.Millisecond

// manyThreads is the size of a blob from which on running its stages in parallel pays.
const manyThreads = 512 << 10

// finalize finalizes the layer of w in dir over the trees lowers, the topmost first, in a confined process.
func (u *unpackers) finalize(
	ctx context.Context, w layerRequest, dir string, res *layer.Result, lowers []layer.Lower, job unpack.Job,
) error {
	if res.Independent() {
		return nil
	}
	if u.plain {
		return finalizeSaved(ctx, w, dir, res, lowers, job)
	}
	job.Finalize, job.More, job.Threads = true, true, 1
	in, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	job.Looks = useOf(w).lookUps()
	answer, err := u.answer(ctx, task{job: job, layer: w, dir: dir, lowers: lowers, in: in, failed: func() {}})
	if err != nil {
		return err
	}
	useOf(w).looked(answer.Result.Looks)
	res.Bytes, res.Inodes, res.Waits = answer.Result.Bytes, answer.Result.Inodes, false
	res.Unsupported += answer.Result.Unsupported
	res.Marked = res.Marked || answer.Result.Marked
	return nil
}

// finalizeHere finalizes in this process.
func finalizeHere(ctx context.Context, w layerRequest, dir string, res *layer.Result, lowers []layer.Lower) error {
	trees, err := layer.OpenTrees(lowers)
	if err != nil {
		return fmt.Errorf("finalize layer: %w", err)
	}
	use := useOf(w)
	trees.Looks = use.lookUps()
	trees.Opaque = func(tree int, path string) (bool, error) { return use.isOpaque(trees.Roots[tree], path) }
	err = layer.Finalize(ctx, dir, res, trees)
	use.looked(res.Looks)
	return err
}

// finalizeSaved finalizes in this process what another one has unpacked. It is for machines without detached mounts,
// where a confined process could write to the layers below that it is given.
func finalizeSaved(
	ctx context.Context, w layerRequest, dir string, res *layer.Result, lowers []layer.Lower, job unpack.Job,
) error {
	loaded, err := layer.LoadResult(ctx, dir, job.Limits)
	if err != nil {
		return err
	}
	if err := finalizeHere(ctx, w, dir, loaded, lowers); err != nil {
		return err
	}
	res.Bytes, res.Inodes, res.Waits = loaded.Bytes, loaded.Inodes, false
	res.Marked = res.Marked || loaded.Marked
	return nil
}

// imageUse counts what the layers of an image take of limit.ImageMarks and limit.ImageLooks while they are finalized.
type imageUse struct{ marks, looks atomic.Int64 }

func useOf(w layerRequest) *imageUse { return cmp.Or(w.use, new(imageUse)) }

// isOfImage reports whether all layers of an image share a budget.
func isOfImage(b limit.Budget) bool {
	return b.Name == limit.ImageMarks.Name || b.Name == limit.ImageLooks.Name
}

// lookUps is what finalizing the next layer has.
func (u *imageUse) lookUps() layer.Looks {
	return layer.Looks{Most: limit.ImageLooks.Limit, Used: u.looks.Load()}
}

// looked notes how many look-ups the layers have taken up to one.
func (u *imageUse) looked(used int64) { u.looks.Store(max(u.looks.Load(), used)) }

// isOpaque reports whether the directory at a path below root has the overlay's opaque mark.
func (u *imageUse) isOpaque(root int, path string) (bool, error) {
	if err := limit.ImageMarks.Check(u.marks.Add(1)); err != nil {
		return false, err
	}
	return layer.IsOpaque(root, path), nil
}

// accept checks what a process left in dir, and grants what it asks for.
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
	return catalog.At("unpack.grant", func() error {
		granted, err := layer.Grant(ctx, dir, job.Limits)
		a.Result.Unsupported, a.Result.Marked = a.Result.Unsupported+granted.Unsupported, granted.Marked
		return err
	})
}

// plausible refuses sizes that no layer within the limits has, because the sizes of all layers are added up.
func plausible(r *layer.Result, lim layer.Limits) error {
	most := 2*uint64(lim.Bytes) + 1<<30 // tar-split metadata may be as large as the files
	if r.Bytes > most || r.Inodes > most/4096 || r.Unsupported < 0 {
		text := fmt.Sprintf("the unpacker says that the layer has %d bytes in %d files, beyond every limit",
			r.Bytes, r.Inodes)
		return &UnpackerError{text, errdefs.ErrFailedPrecondition}
	}
	return nil
}
