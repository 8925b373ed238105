package image

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/fail"
	"berth/internal/image/ahead"
	"berth/internal/image/inflate"
	"berth/internal/image/layer"
	"berth/internal/limit"
)

// gunzipFrom is the size of a gzip layer from which on a program inflates it. Starting the program takes about 5 ms of
// processor time, which it saves over about 2 MiB of a blob (BenchmarkInflate of package inflate).
const gunzipFrom = 4 << 20

// inflater opens the plain streams of layers, by a program of the node or by the library.
type inflater struct {
	program *inflate.Program // nil if the library inflates all
	from    int64            // the smallest layer for the program: gunzipFrom, less in tests
	log     *slog.Logger
}

// suited returns the program for a layer. It returns nil, for the library, if the layer is small, if the program has
// failed on it before, if no diff id would prove what it did, or if the node has one processor, where running the two
// side by side gains nothing.
func (i inflater) suited(ctx context.Context, w layerRequest) *inflate.Program {
	p := i.program
	if p == nil || w.left != nil || w.diffID == "" || w.part.Path != "" || w.desc.Size < i.from ||
		runtime.GOMAXPROCS(0) < 2 || !p.Usable(ctx) {
		return nil
	}
	return p
}

// start starts the program on a blob if the program can inflate it. Otherwise the result is nil, and begun is the blob
// with the bytes that start has looked at.
func (i inflater) start(
	ctx context.Context, blob io.Reader, w layerRequest,
) (program *inflate.Stream, begun io.Reader) {
	p := i.suited(ctx, w)
	if p == nil {
		return nil, blob
	}
	head := bufio.NewReaderSize(blob, inflate.HeadBytes)
	if begin, _ := head.Peek(inflate.HeadBytes); !inflate.Suits(begin) { // the next read returns an error again
		return nil, head
	}
	program, err := p.Start(ctx, head)
	if err != nil {
		i.log.Warn("a layer is inflated by the library", "layer", w.desc.Digest, "error", err)
		p.Inflated(err)
		return nil, head
	}
	return program, head
}

// open opens the plain stream of a blob. Before the caller closes it, reads of the blob must no longer block.
func (i inflater) open(ctx context.Context, blob io.Reader, w layerRequest) (io.ReadCloser, error) {
	program, begun := i.start(ctx, blob, w)
	if program != nil {
		return program, nil
	}
	received := ahead.Read(begun, nil)
	plain, err := layer.Decompress(ctx, received, w.diffID != "")
	if err != nil {
		received.Close()
		return nil, err
	}
	return &stage{plain, received}, nil
}

// stage is a stream together with the stream that it reads from.
type stage struct {
	io.ReadCloser
	received *ahead.Stream
}

func (s *stage) Close() error {
	err := s.ReadCloser.Close()
	s.received.Close()
	return err
}

// plainDigest digests a layer's tar. If the blob is the tar, sum is nil, because the digest of the blob is enough.
func plainDigest(
	plain io.Reader, blob *blobReader, w layerRequest,
) (sum io.Writer, result func() digest.Digest) {
	alg := w.algorithm()
	s, ok := plain.(*stage)
	if ok && w.part.Path == "" && layer.IsPlain(s.ReadCloser) && blob.sum != nil && blob.desc.Digest.Algorithm() == alg {
		return nil, blob.sum.Digest
	}
	d := alg.Digester()
	return d.Hash(), d.Digest
}

// made is the result of unpacking a blob.
type made struct {
	result *layer.Result
	diff   digest.Digest
	after  []digest.Digest // the blobs whose layers the process had before
}

// inflate inflates, digests and unpacks a blob into dir, in a process of its own if the store has unpackers.
func (s *pipeline) inflate(ctx context.Context, blob *blobReader, w layerRequest, dir string) (*made, error) {
	if s.unpackers != nil {
		return inflateConfined(ctx, s, blob, w, dir)
	}
	tarOf, err := asTar(blob, w)
	if err != nil {
		return nil, err
	}
	plain, err := s.inflater.open(ctx, tarOf, w)
	if err != nil {
		blob.rest.bound()
		return nil, err
	}
	defer plain.Close()
	sum, result := plainDigest(plain, blob, w)
	stream := ahead.Read(plain, sum)
	defer stream.Close()
	if program, ok := plain.(*inflate.Stream); ok {
		defer program.Stop() // so that the goroutine that reads ahead stops waiting for the blob
	}
	res, err := layer.Unpack(ctx, stream, dir, s.settings().limits())
	if _, ok := plain.(*inflate.Stream); ok {
		err = s.inflater.judge(ctx, blob, w, result, err)
	}
	if err != nil {
		if s, ok := plain.(*stage); ok {
			s.received.End()
		}
		blob.rest.bound()
		return nil, err // the digest is still being computed
	}
	return &made{result: res, diff: result()}, nil
}

// inflateConfined has a confined process unpack a blob. The process also inflates it, unless the program does; then the
// process reads the program's output.
func inflateConfined(ctx context.Context, s *pipeline, blob *blobReader, w layerRequest, dir string) (*made, error) {
	job := jobOf(s.settings())
	job.Algorithm, job.Proven = w.algorithm().String(), w.diffID != ""
	turned, end := s.unpackers.turns(w).begin(ctx, blob)
	defer end()
	tarOf, err := asTar(turned, w)
	if err != nil {
		return nil, err
	}
	program, begun := s.inflater.start(ctx, tarOf, w)
	if program == nil {
		said, err := s.unpackers.unpack(ctx, begun, w, dir, job, blob.rest.bound)
		if err != nil {
			return nil, err
		}
		return said.made(), nil
	}
	defer program.Close()
	var tar *os.File
	tar, job.Mark = program.Output()
	said, err := s.unpackers.unpackPlain(ctx, tar, w, dir, job, blob.rest.bound)
	if !fail.As[*hungError](err) { // else the end of the blob's reader would hide that the process still has the layer
		err = program.Proven(said.behind(), err)
	}
	err = s.inflater.judge(ctx, blob, w, said.diff, err)
	if err != nil {
		program.Stop()
		blob.rest.bound()
		return nil, err
	}
	return said.made(), nil
}

// judge decides what an error about a layer means that the program inflated. The program may have caused wrong content,
// so the library has to inflate the layer again. It did not cause a refusal of the image, nor errors of the network,
// the disk or the caller.
func (i inflater) judge(
	ctx context.Context, blob *blobReader, w layerRequest, diff func() digest.Digest, err error,
) error {
	if err == nil {
		if diff() == w.diffID {
			i.program.Inflated(nil)
			return nil
		}
		if err = blob.prove(); err == nil {
			err = errOtherContent
		}
	}
	switch k := kindOf(err); {
	case ctx.Err() != nil, isRemote(err), k == errdefs.ErrDataLoss, k == errdefs.ErrResourceExhausted:
	case fail.As[*inflate.Error](err), fail.As[*layer.HostileError](err), fail.As[*limit.Error](err):
	case fail.As[*UnpackerError](err):
	default:
		return &inflate.Error{Cause: err}
	}
	return err
}

var errOtherContent = errors.New("its output is not what the config of the image promises")

// again reports whether a layer should be fetched once more, and returns the request for that.
func again(w layerRequest, err error) (layerRequest, bool) {
	if !w.alone && fail.As[*sharedError](err) {
		w.alone = true
		return w, true
	}
	var left *inflate.Error
	if w.left == nil && errors.As(err, &left) {
		w.left = left
		return w, true
	}
	return w, errors.Is(err, errMismatch) || errors.Is(err, layer.ErrGaveWay)
}

// fetchedAgain logs that the library had to inflate a layer because the program had failed.
func (i inflater) fetchedAgain(w layerRequest) {
	i.log.Warn("a layer was fetched twice, since the program for gzip did not inflate it and the library could",
		"layer", w.desc.Digest, "error", w.left)
	i.program.Inflated(w.left)
}
