package layer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/diskspace"
	"berth/internal/limit"
)

// A layer keeps these beside its tree, so that the tar can be put together again.
const (
	// TarSplitFile holds the tar-split metadata: the whole tar without the content of files.
	TarSplitFile = "skeleton"
	// ReplacedDir holds files that a later entry of the same tar replaced.
	ReplacedDir = "replaced"
)

// tarSplitMagic is the beginning of tar-split metadata. Its number is the version of the format.
const tarSplitMagic = "berth skeleton 1\n"

// The kinds of tar-split records. A record begins with a number, the kind in its two low bits and n in the others.
const (
	recLiteral = iota // n bytes of the tar follow
	recFile           // n bytes of the tar are the content of the file whose path follows
	recMoved          // a path of n bytes and another follow: the files at and below the first moved to the other
)

const (
	literalBuffer = 16 << 10
	maxRecordPath = 16 << 10
	// literalRoom is how many uncompressed bytes of tar-split metadata a layer may have even if its limit is smaller,
	// because the limit is meant for content and these are mostly headers.
	literalRoom = 64 << 20
)

// tarSplitWriter writes tar-split metadata while the tar is read.
type tarSplitWriter struct {
	out     *packed
	literal []byte
	left    int64 // literal bytes still allowed
	limit   int64
	scratch []byte
}

func createTarSplit(dir string, limit int64) (*tarSplitWriter, error) {
	out, err := createPacked(filepath.Join(dir, TarSplitFile), os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	if _, err := out.file.WriteString(tarSplitMagic); err != nil {
		return nil, errors.Join(err, out.close())
	}
	if limit <= 0 {
		limit = math.MaxInt64
	}
	limit = max(limit, literalRoom)
	return &tarSplitWriter{out: out, literal: make([]byte, 0, literalBuffer), left: limit, limit: limit}, nil
}

// appendTarSplit opens the tar-split metadata of a layer to append records.
func appendTarSplit(dir string) (*tarSplitWriter, error) {
	out, err := createPacked(filepath.Join(dir, TarSplitFile), os.O_APPEND)
	if err != nil {
		return nil, err
	}
	return &tarSplitWriter{out: out}, nil
}

func (s *tarSplitWriter) close() error { return errors.Join(s.flush(), s.out.close()) }

// raw adds bytes of the tar that are not the content of a file.
func (s *tarSplitWriter) raw(b []byte) error {
	if s.left -= int64(len(b)); s.left < 0 {
		return fmt.Errorf("its tar, beside the files: %w", limit.LayerBytes.At(s.limit).Exceeded())
	}
	if len(s.literal)+len(b) > cap(s.literal) {
		if err := s.flush(); err != nil {
			return err
		}
		if len(b) >= cap(s.literal) {
			return s.record(recLiteral, int64(len(b)), b)
		}
	}
	s.literal = append(s.literal, b...)
	return nil
}

func (s *tarSplitWriter) flush() error {
	if len(s.literal) == 0 {
		return nil
	}
	b := s.literal
	s.literal = s.literal[:0]
	return s.record(recLiteral, int64(len(b)), b)
}

// content records that the next n bytes of the tar are the content of the file at path.
func (s *tarSplitWriter) content(path string, n int64) error {
	if n == 0 {
		return nil
	}
	if err := s.flush(); err != nil {
		return err
	}
	return s.record(recFile, n, s.sized(path))
}

// moved records that the files at and below the path from are at the path to now.
func (s *tarSplitWriter) moved(from, to string) error {
	if err := s.flush(); err != nil {
		return err
	}
	return s.record(recMoved, int64(len(from)), append([]byte(from), s.sized(to)...))
}

func (s *tarSplitWriter) sized(path string) []byte {
	return append(binary.AppendUvarint(nil, uint64(len(path))), path...)
}

func (s *tarSplitWriter) record(kind int, n int64, body []byte) error {
	s.scratch = binary.AppendUvarint(s.scratch[:0], uint64(n)<<2|uint64(kind))
	if _, err := s.out.Write(s.scratch); err != nil {
		return fmt.Errorf("write layer skeleton: %w", err)
	}
	if _, err := s.out.Write(body); err != nil {
		return fmt.Errorf("write layer skeleton: %w", err)
	}
	return nil
}

// recorder is the reader of the tar. It counts the bytes that are read while the content of a file is copied, and puts
// all others into the tar-split metadata.
type recorder struct {
	ctx   context.Context // Read fails after its end: tar.Reader may skip content of any length in one call
	r     io.Reader
	sk    *tarSplitWriter
	disk  *diskspace.Gauge // is charged each byte that is read, because it will be written
	file  bool             // the content of a file is being read
	count int64
}

func (t *recorder) Read(p []byte) (int, error) {
	if err := t.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := t.r.Read(p)
	if low := t.disk.Spend(int64(n)); low != nil {
		return n, low
	}
	if t.file {
		t.count += int64(n)
	} else if werr := t.sk.raw(p[:n]); werr != nil {
		return n, werr
	}
	return n, err
}

// begin is called before the content of a file is copied, and end afterwards.
func (t *recorder) begin() { t.file, t.count = true, 0 }

func (t *recorder) end(path string, n int64) error {
	t.file = false
	if t.count != n {
		return fmt.Errorf("%d bytes of the tar became %d bytes of a file", t.count, n)
	}
	return t.sk.content(path, n)
}

// replacedFiles keeps the files that a later entry replaces, because the tar cannot be put together without their
// content.
type replacedFiles struct {
	dir    string // of the layer
	sk     func() (*tarSplitWriter, error)
	memory *quota
	used   int // counts the names given out
}

// freed is the space that a removal has freed.
type freed struct{ bytes, inodes uint64 }

// take frees the name base in an open directory: it keeps what has content and removes the rest. full is the path of
// base in the layer.
func (r *replacedFiles) take(dirfd int, base, full string) (freed, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return freed{}, err
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFDIR && unix.Unlinkat(dirfd, base, unix.AT_REMOVEDIR) == nil: // it was empty
		return freed{4096, 1}, nil
	case kind == unix.S_IFDIR, kind == unix.S_IFREG && st.Size > 0:
	case st.Nlink > 1:
		return freed{}, unix.Unlinkat(dirfd, base, 0)
	default:
		return freed{0, 1}, unix.Unlinkat(dirfd, base, 0)
	}
	// The moves are charged because OpenTar will hold all of them in memory.
	if err := r.memory.take(2*nodeCost + int64(len(full))); err != nil {
		return freed{}, err
	}
	to, err := r.place()
	if err != nil {
		return freed{}, err
	}
	if err := unix.Renameat(dirfd, base, unix.AT_FDCWD, filepath.Join(r.dir, ReplacedDir, to)); err != nil {
		return freed{}, err
	}
	sk, err := r.sk()
	if err != nil {
		return freed{}, err
	}
	return freed{}, sk.moved(full, "/"+to)
}

func (r *replacedFiles) place() (string, error) {
	if r.used == 0 {
		if err := os.Mkdir(filepath.Join(r.dir, ReplacedDir), 0o700); err != nil {
			return "", err
		}
	}
	r.used++
	return strconv.Itoa(r.used), nil
}

// tarSplitBytes returns the space that the tar-split metadata of a layer takes on the disk.
func tarSplitBytes(dir string) uint64 {
	i, err := os.Stat(filepath.Join(dir, TarSplitFile))
	if err != nil {
		return 0
	}
	return uint64(i.Size()+4095) &^ 4095
}
