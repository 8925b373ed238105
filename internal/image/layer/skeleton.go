package layer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
)

// What a layer keeps, besides its tree, of the tar it came from.
const (
	// SkeletonFile holds all of the tar but the files' content.
	SkeletonFile = "skeleton"
	// ReplacedDir holds files that a later entry of the same tar replaced.
	ReplacedDir = "replaced"
)

// skeletonMagic begins a skeleton; the number is the format's version.
const skeletonMagic = "berth skeleton 1\n"

// The kinds of a skeleton's records, in the two low bits of the number that begins each; what is above is n.
const (
	recLiteral = iota // n bytes of the tar follow
	recFile           // n bytes of the tar are the content of the file whose path follows
	recMoved          // the files of the records so far that lie at a path, of n bytes, lie at another now
)

const (
	literalBuffer = 16 << 10
	maxRecordPath = 16 << 10
	// literalRoom is what a skeleton may hold uncompressed even in a layer with a smaller limit: headers are no content.
	literalRoom = 64 << 20
)

// skeletonWriter notes a tar as it goes by.
type skeletonWriter struct {
	out     *packed
	literal []byte
	left    int64 // literal bytes still allowed
	scratch []byte
}

func createSkeleton(dir string, limit int64) (*skeletonWriter, error) {
	out, err := createPacked(filepath.Join(dir, SkeletonFile), os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	if _, err := out.file.WriteString(skeletonMagic); err != nil {
		return nil, errors.Join(err, out.close())
	}
	if limit <= 0 {
		limit = math.MaxInt64
	}
	return &skeletonWriter{out: out, literal: make([]byte, 0, literalBuffer), left: max(limit, literalRoom)}, nil
}

// appendSkeleton opens the skeleton of a layer for further records.
func appendSkeleton(dir string) (*skeletonWriter, error) {
	out, err := createPacked(filepath.Join(dir, SkeletonFile), os.O_APPEND)
	if err != nil {
		return nil, err
	}
	return &skeletonWriter{out: out}, nil
}

func (s *skeletonWriter) close() error { return errors.Join(s.flush(), s.out.close()) }

// raw adds bytes of the tar that are nobody's content.
func (s *skeletonWriter) raw(b []byte) error {
	if s.left -= int64(len(b)); s.left < 0 {
		return &LimitError{"layer has more beside its files than it may unpack to"}
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

func (s *skeletonWriter) flush() error {
	if len(s.literal) == 0 {
		return nil
	}
	b := s.literal
	s.literal = s.literal[:0]
	return s.record(recLiteral, int64(len(b)), b)
}

// content says that the next n bytes of the tar are those of the file at path.
func (s *skeletonWriter) content(path string, n int64) error {
	if n == 0 {
		return nil
	}
	if err := s.flush(); err != nil {
		return err
	}
	return s.record(recFile, n, s.sized(path))
}

// moved says that what was at from, and below it, is at to now.
func (s *skeletonWriter) moved(from, to string) error {
	if err := s.flush(); err != nil {
		return err
	}
	return s.record(recMoved, int64(len(from)), append([]byte(from), s.sized(to)...))
}

func (s *skeletonWriter) sized(path string) []byte {
	return append(binary.AppendUvarint(nil, uint64(len(path))), path...)
}

func (s *skeletonWriter) record(kind int, n int64, body []byte) error {
	s.scratch = binary.AppendUvarint(s.scratch[:0], uint64(n)<<2|uint64(kind))
	if _, err := s.out.Write(s.scratch); err != nil {
		return fmt.Errorf("write layer skeleton: %w", err)
	}
	if _, err := s.out.Write(body); err != nil {
		return fmt.Errorf("write layer skeleton: %w", err)
	}
	return nil
}

// recorder is the tar as it is read: what the reader takes while a file's content is copied is counted, all else goes into
// the skeleton.
type recorder struct {
	r     io.Reader
	sk    *skeletonWriter
	file  bool // content of a file is being read
	count int64
}

func (t *recorder) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if t.file {
		t.count += int64(n)
	} else if werr := t.sk.raw(p[:n]); werr != nil {
		return n, werr
	}
	return n, err
}

// begin and end enclose the copying of a file's content.
func (t *recorder) begin() { t.file, t.count = true, 0 }

func (t *recorder) end(path string, n int64) error {
	t.file = false
	if t.count != n {
		return fmt.Errorf("%d bytes of the tar became %d bytes of a file", t.count, n)
	}
	return t.sk.content(path, n)
}

// attic is where files go that an entry replaces: the tar cannot be put together without them.
type attic struct {
	dir  string // of the layer
	sk   func() (*skeletonWriter, error)
	used int // names given out; -1 when it has not been looked
}

// take makes the name free at host, which is full in the layer.
func (a *attic) take(host, full string) error {
	info, err := os.Lstat(host)
	if err != nil {
		return err
	}
	if !info.IsDir() && (!info.Mode().IsRegular() || info.Size() == 0) {
		return os.Remove(host)
	}
	if info.IsDir() && os.Remove(host) == nil { // it was empty
		return nil
	}
	to, err := a.place()
	if err != nil {
		return err
	}
	if err := os.Rename(host, filepath.Join(a.dir, ReplacedDir, to)); err != nil {
		return err
	}
	sk, err := a.sk()
	if err != nil {
		return err
	}
	return sk.moved(full, "/"+to)
}

func (a *attic) place() (string, error) {
	dir := filepath.Join(a.dir, ReplacedDir)
	if a.used < 0 {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
		there, err := os.ReadDir(dir)
		if err != nil {
			return "", err
		}
		a.used = len(there)
	}
	a.used++
	return fmt.Sprint(a.used), nil
}

// kept is what a layer takes of the disk for the sake of its tar alone.
func kept(dir string) (bytes uint64) {
	_ = filepath.Walk(filepath.Join(dir, ReplacedDir), func(_ string, i os.FileInfo, err error) error {
		if err == nil && (i.IsDir() || i.Mode().IsRegular()) {
			bytes += uint64(i.Size()+4095) &^ 4095
		}
		return nil
	})
	if i, err := os.Stat(filepath.Join(dir, SkeletonFile)); err == nil {
		bytes += uint64(i.Size()+4095) &^ 4095
	}
	return bytes
}
