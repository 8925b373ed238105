package layer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// ErrNoTarSplit says that a layer was unpacked by a release that did not keep what its tar consisted of.
var ErrNoTarSplit = errors.New("the layer has no skeleton: an earlier release of Berth unpacked it")

// A DamagedError says which file of a layer is not what the tar had.
type DamagedError struct{ Path, Problem string }

func (e *DamagedError) Error() string { return e.Path + " " + e.Problem }

// Tar is the tar stream that a layer was unpacked from, to be put together again from what the layer keeps.
type Tar struct {
	// Size is that of the stream, in bytes.
	Size  int64
	dir   string
	moves *pathTree[[]move] // by where from, in the order of the tar-split metadata
}

// move says that what the records before number at name lies elsewhere.
type move struct {
	at int
	to string
}

// OpenTar reads what the layer in dir keeps of its tar. The error is ErrNoTarSplit, or says how the tar-split metadata
// is damaged.
func OpenTar(dir string) (*Tar, error) {
	t := &Tar{dir: dir, moves: newPathTree[[]move]()}
	err := t.each(func(i int, r tarSplitRecord) error {
		if r.kind == recMoved {
			moves := t.moves.at(t.moves.make(r.path))
			*moves = append(*moves, move{i, r.to})
			return nil
		}
		if t.Size += r.n; t.Size < 0 {
			return errors.New("impossible sizes")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// CopyTo writes the stream to w. Whoever calls proves it by its digest: a file's content is taken as it is, only its
// size is known here. The error is a DamagedError when a file is missing or of another size.
func (t *Tar) CopyTo(ctx context.Context, w io.Writer) error {
	root, err := unix.Open(t.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	buf := make([]byte, 128<<10)
	return t.each(func(i int, r tarSplitRecord) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		switch r.kind {
		case recLiteral:
			_, err := io.CopyBuffer(plainWriter{w}, r.body, buf)
			return err
		case recFile:
			return copyContentTo(ctx, w, root, t.resolve(i, r.path), r.n, buf)
		}
		return nil
	})
}

// plainWriter hides what else a writer can do, so that io.CopyBuffer uses the buffer.
type plainWriter struct{ io.Writer }

// copyContentTo writes the n bytes of the file at path below root.
func copyContentTo(ctx context.Context, w io.Writer, root int, path string, n int64, buf []byte) error {
	f, err := openContent(root, path, n)
	if err != nil {
		return err
	}
	defer f.Close()
	for left := n; left > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := f.Read(buf[:min(left, int64(len(buf)))])
		if _, werr := w.Write(buf[:m]); werr != nil {
			return werr
		}
		left -= int64(m)
		if err != nil && left > 0 {
			return &DamagedError{path, fmt.Sprintf("cannot be read: %v", err)}
		}
	}
	return nil
}

func openContent(root int, path string, n int64) (*os.File, error) {
	fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: beneath})
	if errors.Is(err, unix.ENOENT) {
		return nil, &DamagedError{path, "is missing"}
	}
	if err != nil {
		return nil, &DamagedError{path, fmt.Sprintf("cannot be opened: %v", err)}
	}
	f := os.NewFile(uintptr(fd), path)
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = &DamagedError{path, "is no regular file"}
	case info.Size() != n:
		err = &DamagedError{path, fmt.Sprintf("has %d bytes, not %d", info.Size(), n)}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// resolve finds where the file of record i is now, relative to the layer's directory.
func (t *Tar) resolve(i int, path string) string {
	for t.moves.count > 1 {
		from, next, ok := t.nextMove(i, path)
		if !ok {
			break
		}
		i, path = next.at, next.to+path[len(from):]
	}
	if strings.HasPrefix(path, "/") {
		return ReplacedDir + path
	}
	return FS + "/" + path
}

// nextMove finds the first move after record i that took path along.
func (t *Tar) nextMove(i int, path string) (from string, first move, ok bool) {
	at, rest := rootNode, path
	for more := true; more; {
		var name string
		name, rest, more = strings.Cut(rest, "/")
		c, there := t.moves.child(at, name)
		if !there {
			break
		}
		at = c
		moves := *t.moves.at(at)
		k := sort.Search(len(moves), func(k int) bool { return moves[k].at > i })
		if k < len(moves) && (!ok || moves[k].at < first.at) {
			from, first, ok = strings.TrimSuffix(path[:len(path)-len(rest)], "/"), moves[k], true
		}
	}
	return from, first, ok
}

// Prove compares what the tar-split metadata says with the manifest, without reading a file. report hears of what
// differs.
func (t *Tar) prove(man manifest, report func(path, problem string)) error {
	return t.each(func(i int, r tarSplitRecord) error {
		if r.kind != recFile {
			return nil
		}
		path, inTree := strings.CutPrefix(t.resolve(i, r.path), FS+"/")
		if !inTree {
			return nil
		}
		e := man[path]
		if e.Type == typeLink {
			e = man[e.Link]
		}
		if e.Type != typeFile || e.Size != r.n {
			report(path, fmt.Sprintf("is to have %d bytes of the layer's tar, says the skeleton", r.n))
		}
		return nil
	})
}

// tarSplitRecord is one record. A body not read by the callback of each is skipped.
type tarSplitRecord struct {
	kind     int
	n        int64
	path, to string
	body     io.Reader // of a literal
}

// each reads the tar-split metadata from its beginning and calls do for all its records.
func (t *Tar) each(do func(i int, r tarSplitRecord) error) error {
	f, err := os.Open(filepath.Join(t.dir, TarSplitFile))
	if errors.Is(err, os.ErrNotExist) {
		return ErrNoTarSplit
	}
	if err != nil {
		return err
	}
	defer f.Close()
	magic := make([]byte, len(tarSplitMagic))
	if _, err := io.ReadFull(f, magic); err != nil || string(magic) != tarSplitMagic {
		return fmt.Errorf("read layer skeleton: it begins with %q, not %q", magic, tarSplitMagic)
	}
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(1<<20))
	if err != nil {
		return fmt.Errorf("read layer skeleton: %w", err)
	}
	defer z.Close()
	r := &tarSplitReader{bufio.NewReaderSize(z, 32<<10)}
	for i := 0; ; i++ {
		rec, err := r.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read layer skeleton: %w", err)
		}
		if err := do(i, rec); err != nil {
			return err
		}
		if err := rec.skip(); err != nil {
			return fmt.Errorf("read layer skeleton: %w", err)
		}
	}
}

type tarSplitReader struct{ *bufio.Reader }

func (r *tarSplitReader) next() (rec tarSplitRecord, err error) {
	head, err := binary.ReadUvarint(r)
	if err != nil {
		return rec, err
	}
	rec.kind, rec.n = int(head&3), int64(head>>2)
	switch rec.kind {
	case recLiteral:
		rec.body = &literal{r: r.Reader, left: rec.n}
	case recFile:
		rec.path, err = r.sized()
	case recMoved:
		if rec.path, err = r.path(rec.n); err == nil {
			rec.to, err = r.sized()
		}
	default:
		err = fmt.Errorf("a record of the unknown kind %d", rec.kind)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return rec, err
}

func (r *tarSplitReader) sized() (string, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return "", err
	}
	return r.path(int64(n))
}

func (r *tarSplitReader) path(n int64) (string, error) {
	if n < 0 || n > maxRecordPath {
		return "", fmt.Errorf("a path of %d bytes", n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return string(b), err
}

// literal reads the body of a record; that it ends too early is an error of its own.
type literal struct {
	r    *bufio.Reader
	left int64
}

func (l *literal) Read(p []byte) (int, error) {
	if l.left == 0 {
		return 0, io.EOF
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (rec tarSplitRecord) skip() error {
	if rec.body == nil {
		return nil
	}
	_, err := io.Copy(io.Discard, rec.body)
	return err
}
