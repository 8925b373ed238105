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

// gunzipFrom is the size of a gzip layer from which on a program inflates it. Starting one costs some 5 ms of
// processor time, which it has gained again after some 2 MiB (BenchmarkInflate of package inflate).
const gunzipFrom = 4 << 20

// inflater opens the plain streams of layers: by a program of the node, or by the library.
type inflater struct {
	program *inflate.Program // nil where the library does all
	from    int64            // the least size of a layer for it: gunzipFrom, less in tests
	log     *slog.Logger
}

// suited is the program for a layer, nil where the library inflates it: a small one, one that the program did not
// inflate before, and any on a node of one processor, where nothing is gained by doing two things at once.
func (i inflater) suited(ctx context.Context, w layerRequest) *inflate.Program {
	p := i.program
	if p == nil || w.left != nil || w.desc.Size < i.from || runtime.GOMAXPROCS(0) < 2 || !p.Usable(ctx) {
		return nil
	}
	return p
}

// start has a program inflate a blob, where that is for it. The result is nil where it is not, and then begun is the
// blob, of which a part was looked at.
func (i inflater) start(
	ctx context.Context, blob io.Reader, w layerRequest,
) (program *inflate.Stream, begun io.Reader) {
	p := i.suited(ctx, w)
	if p == nil {
		return nil, blob
	}
	head := bufio.NewReaderSize(blob, inflate.HeadBytes)
	if begin, _ := head.Peek(inflate.HeadBytes); !inflate.Suits(begin) { // an error comes again
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

// open opens the plain stream of a blob. Whoever closes it has made sure that the blob does not block.
func (i inflater) open(ctx context.Context, blob io.Reader, w layerRequest) (io.ReadCloser, error) {
	program, begun := i.start(ctx, blob, w)
	if program != nil {
		return program, nil
	}
	received := ahead.Read(begun, nil)
	plain, err := layer.Decompress(ctx, received)
	if err != nil {
		received.Close()
		return nil, err
	}
	return &stage{plain, received}, nil
}

// stage is a stream with the one that it reads.
type stage struct {
	io.ReadCloser
	received *ahead.Stream
}

func (s *stage) Close() error {
	err := s.ReadCloser.Close()
	s.received.Close()
	return err
}

// plainDigest digests a layer's tar. Where the blob is the tar, the digest of the blob is taken already: sum is nil
// then.
func plainDigest(plain io.Reader, blob *blobReader, alg digest.Algorithm) (sum io.Writer, result func() digest.Digest) {
	s, ok := plain.(*stage)
	if ok && layer.IsPlain(s.ReadCloser) && blob.sum != nil && blob.desc.Digest.Algorithm() == alg {
		return nil, blob.sum.Digest
	}
	d := alg.Digester()
	return d.Hash(), d.Digest
}

// made is what became of a blob.
type made struct {
	result *layer.Result
	diff   digest.Digest
	after  []digest.Digest // of which blobs the process had layers before
}

// inflate unpacks a blob into dir: inflate, digest, unpack. A process of its own does that where there are any.
func (s *pipeline) inflate(ctx context.Context, blob *blobReader, w layerRequest, dir string) (*made, error) {
	if s.unpackers != nil {
		return inflateConfined(ctx, s, blob, w, dir)
	}
	plain, err := s.inflater.open(ctx, blob, w)
	if err != nil {
		blob.rest.bound()
		return nil, err
	}
	defer plain.Close()
	sum, result := plainDigest(plain, blob, w.diffID.Algorithm())
	stream := ahead.Read(plain, sum)
	defer stream.Close()
	if program, ok := plain.(*inflate.Stream); ok {
		defer program.Stop() // who reads ahead of it need not wait for more of the blob
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
		return nil, err // the rest is still being added up
	}
	return &made{result: res, diff: result()}, nil
}

// inflateConfined has a process unpack a blob, which inflates it too, unless that is for a program: then the process
// reads what that one writes.
func inflateConfined(ctx context.Context, s *pipeline, blob *blobReader, w layerRequest, dir string) (*made, error) {
	job := jobOf(s.settings())
	job.Algorithm = w.diffID.Algorithm().String()
	turned, end := s.unpackers.turns.begin(ctx, blob)
	defer end()
	program, begun := s.inflater.start(ctx, turned, w)
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
	err = program.Proven(said.behind(), err)
	err = s.inflater.judge(ctx, blob, w, said.diff, err)
	if err != nil {
		program.Stop()
		blob.rest.bound()
		return nil, err
	}
	return said.made(), nil
}

// judge says what became of a layer that a program inflated. Content that is not what it should be may be the
// program's doing: the library is to say. What the image asks for and may not have is no doing of the program, nor is
// what network, disk or caller did.
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

// again says that a layer is to be fetched once more, and how.
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

// fetchedAgain tells of a layer that the library had to inflate, though a program was to.
func (i inflater) fetchedAgain(w layerRequest) {
	i.log.Warn("a layer was fetched twice, since the program for gzip did not inflate it and the library could",
		"layer", w.desc.Digest, "error", w.left)
	i.program.Inflated(w.left)
}
