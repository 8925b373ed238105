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

	"berth/internal/fail"
)

// ErrNoTarSplit is returned for a layer that an earlier release unpacked: that release wrote no tar-split metadata.
var ErrNoTarSplit = errors.New("the layer has no skeleton: an earlier release of Berth unpacked it")

// A DamagedError names a file of a layer that differs from the file in the tar.
type DamagedError struct{ Path, Problem string }

func (e *DamagedError) Error() string { return e.Path + " " + e.Problem }

// Tar is the tar stream that a layer was unpacked from. CopyTo puts it together again from the layer's files and its
// tar-split metadata.
type Tar struct {
	// Size is the length of the stream in bytes.
	Size  int64
	dir   string
	moves *pathTree[[]move] // by old path, in the order of the tar-split metadata
}

// move is a record of the tar-split metadata, number at: the files that earlier records name by the old path are at to
// now.
type move struct {
	at int
	to string
}

// OpenTar reads the tar-split metadata of the layer in dir. It returns ErrNoTarSplit where there is none, and otherwise
// an error that describes the damage.
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

// CopyTo writes the stream to w. It checks the size of each file but not the content, so the caller must compare the
// digest of the stream. It returns a DamagedError when a file is missing or has another size.
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

// plainWriter hides the other methods of a writer (ReadFrom above all), so that io.CopyBuffer uses its buffer.
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
	fd, err := unix.Openat2(root, path,
		&unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: beneath})
	if errors.Is(err, unix.ENOENT) {
		return nil, &DamagedError{path, "is missing"}
	}
	if fail.Lacking(err) { // it says nothing of the file
		return nil, fmt.Errorf("open %s: %w", path, err)
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

// resolve returns the present path of the file that record i names, relative to the layer's directory.
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

// nextMove returns the first move after record i that concerns path or a directory above it, and the part of path that
// it replaces.
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

// prove compares the tar-split metadata with the manifest and calls report for each difference. It reads no file.
func (t *Tar) prove(man *listing, report func(path, problem string)) error {
	return t.each(func(i int, r tarSplitRecord) error {
		if r.kind != recFile {
			return nil
		}
		path, inTree := strings.CutPrefix(t.resolve(i, r.path), FS+"/")
		if !inTree {
			return nil
		}
		if size, ok := man.fileOf(path); !ok || size != r.n {
			report(path, fmt.Sprintf("is to have %d bytes of the layer's tar, says the skeleton", r.n))
		}
		return nil
	})
}

// tarSplitRecord is one record. The callback of each may leave the body unread: it is skipped then.
type tarSplitRecord struct {
	kind     int
	n        int64
	path, to string
	body     io.Reader // of a literal
}

// each reads the tar-split metadata from its beginning and calls do for each record.
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
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(1<<20))
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

// literal reads the body of a record. It returns io.ErrUnexpectedEOF when the file ends before the body does.
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
