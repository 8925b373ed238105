// Package record keeps one value a file: atomic, checksummed and versioned.
//
// A record is one header line and a JSON body:
//
//	berth-record <kind> v<version> sha256=<hex of the body> len=<bytes of the body>\n
//	{…}
//
// Write replaces a record by writing a temporary file beside it and renaming it over the old one, so a reader sees
// the old value or the new one, whole. It does not wait for the disk: a Flusher makes what was marked dirty durable
// soon after. What a power cut left torn fails the checksum and is reported as a CorruptError; the version before it,
// which was durable, can then be had by ReadSynced.
package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// MaxSize bounds what Read takes into memory, in bytes, and so what is written. The largest real record, a pod of a
// hundred containers with the largest annotations Kubernetes allows, is under 40 MiB.
const MaxSize = 64 << 20

const magic = "berth-record"

// TempPrefix begins the names of the temporary files of Write. A crash may leave one: whoever owns the directory
// removes what begins so.
const TempPrefix = ".tmp-"

// Kind is one sort of record: its name, the version that Write writes and the oldest that Read still understands.
type Kind struct {
	Name            string
	Version, Oldest int
}

// CorruptError says that a record cannot be trusted and why.
type CorruptError struct {
	Path, Reason string
	// Torn says that the content ends too early, or was never there: what a power cut leaves of a record that was not
	// synced yet.
	Torn bool
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("record %s is damaged: %s", e.Path, e.Reason)
}

// VersionError says that a record was written by a release whose format this one does not read.
type VersionError struct {
	Path, Kind             string
	Found, Oldest, Version int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("record %s is %s version %d; this release reads %d to %d: run the release that wrote it, or a "+
		"newer one",
		e.Path, e.Kind, e.Found, e.Oldest, e.Version)
}

// SizeError says that a record would be larger than it may be. It is not written then.
type SizeError struct {
	Kind       string
	Size, Most int // in bytes
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("a %s record would have %d bytes, and may have %d", e.Kind, e.Size, e.Most)
}

var tempSeq atomic.Uint64

// Write replaces the record at path by v. The directory must exist. It does not wait for the disk.
func (k Kind) Write(path string, v any) error { return k.WriteWithin(path, v, MaxSize) }

// WriteWithin is Write of a record that may have so many bytes, MaxSize at most. The error is a *SizeError where it
// would have more.
func (k Kind) WriteWithin(path string, v any, most int) error {
	data, err := k.encode(v, min(most, MaxSize))
	if err != nil {
		return err
	}
	return replace(path, data)
}

// Stage writes a record to a new file, from where the caller renames it to its place. A caller that syncs before it
// renames replaces a record that a power cut must not cost: some file systems keep a rename and lose what was
// renamed.
func (k Kind) Stage(file string, v any) error {
	data, err := k.encode(v, MaxSize)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return fmt.Errorf("stage record: %w", err)
	}
	return nil
}

func (k Kind) encode(v any, most int) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s record: %w", k.Name, err)
	}
	sum := sha256.Sum256(body)
	head := fmt.Sprintf("%s %s v%d sha256=%s len=%d\n", magic, k.Name, k.Version, hex.EncodeToString(sum[:]), len(body))
	if size := len(head) + len(body); size > most {
		return nil, &SizeError{k.Name, size, most}
	}
	return append([]byte(head), body...), nil
}

// replace writes data to a temporary file beside path and renames it over path.
func replace(path string, data []byte) error {
	tmp := filepath.Join(filepath.Dir(path),
		fmt.Sprintf("%s%s-%d-%d", TempPrefix, filepath.Base(path), os.Getpid(), tempSeq.Add(1)))
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("write record: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// Read reads the record at path into v and says which version it was. The error is fs.ErrNotExist where there is none,
// a *CorruptError or a *VersionError.
func (k Kind) Read(path string, v any) (int, error) {
	body, version, err := k.load(path)
	if err != nil {
		return version, err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return version,
			&CorruptError{Path: path, Reason: "its body is not what a " + k.Name + " record holds: " + err.Error()}
	}
	return version, nil
}

// ReadSynced reads the last version of a record that is known to have been durable, for whom Read tells that the
// record is torn. It may be the record's own. There is none before a Flusher has been told of the record by
// DirtyRecord.
func (k Kind) ReadSynced(path string, v any) (int, error) { return k.Read(synced(path), v) }

// syncedPrefix begins the second names of records.
const syncedPrefix = ".synced-"

// synced is the second name of a record.
func synced(path string) string {
	return filepath.Join(filepath.Dir(path), syncedPrefix+filepath.Base(path))
}

// Remove removes a record with what is kept of it; nil when there is none.
func Remove(path string) error {
	for _, name := range []string{path, synced(path)} { // a Flusher looks for the first when it has made the second
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Tidy removes from a directory of records what a crash has left: temporary files, and second names of records that
// were removed. No process may write to the directory meanwhile.
func Tidy(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("tidy records: %w", err)
	}
	for _, e := range entries {
		left := strings.HasPrefix(e.Name(), TempPrefix)
		if name, ok := strings.CutPrefix(e.Name(), syncedPrefix); ok {
			_, err := os.Lstat(filepath.Join(dir, name))
			left = errors.Is(err, fs.ErrNotExist)
		}
		if !left {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("tidy records: %w", err)
		}
	}
	return nil
}

func (k Kind) load(path string) ([]byte, int, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, 0, fmt.Errorf("read record: %w", err)
	}
	if len(data) > MaxSize {
		return nil, 0, &CorruptError{Path: path, Reason: fmt.Sprintf("it is larger than %d bytes", MaxSize)}
	}
	data = bytes.TrimRight(data, "\x00") // blocks that were never written; JSON ends with no such byte
	line, body, ok := bytes.Cut(data, []byte("\n"))
	if !ok {
		torn := bytes.HasPrefix(data, []byte(magic)) || bytes.HasPrefix([]byte(magic), data)
		return nil, 0, &CorruptError{path, "it has no header line", torn}
	}
	h, ok := parseHeader(string(line))
	if !ok {
		return nil, 0, &CorruptError{Path: path, Reason: "its first line is not a record header"}
	}
	if h.kind != k.Name {
		return nil, h.version,
			&CorruptError{Path: path, Reason: fmt.Sprintf("it is a %s record, not a %s record", h.kind, k.Name)}
	}
	if h.version > k.Version || h.version < k.Oldest {
		return nil, h.version, &VersionError{path, k.Name, h.version, k.Oldest, k.Version}
	}
	if len(body) != h.length {
		return nil, h.version,
			&CorruptError{path, fmt.Sprintf("its body has %d bytes, its header says %d", len(body), h.length),
				len(body) < h.length}
	}
	if !h.fits(body) {
		return nil, h.version, &CorruptError{Path: path, Reason: "its checksum does not match"}
	}
	return body, h.version, nil
}

// readFile reads a file, of one that is too large a byte more than MaxSize. What is there and is no regular file is a
// damaged record: to open a FIFO would wait for a writer for ever. It asks the kernel for no more than four things: a
// store opens with ten thousand records.
func readFile(path string) ([]byte, error) {
	var fd int
	err := undisturbed(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		return err
	})
	if err == unix.ENXIO { // a socket
		return nil, irregular(path)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, irregular(path)
	}
	data, n := make([]byte, min(max(st.Size, 0), MaxSize)+1), 0
	for n < len(data) {
		var more int
		err := undisturbed(func() (err error) {
			more, err = unix.Read(fd, data[n:])
			return err
		})
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n += more; more == 0 || int64(n) == st.Size {
			break
		}
	}
	return data[:n], nil
}

func irregular(path string) error { return &CorruptError{Path: path, Reason: "it is no regular file"} }

// undisturbed makes a system call until no signal comes in between, as some file systems let one.
func undisturbed(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

type header struct {
	kind, sum       string
	version, length int
}

// fits reports whether a body is that of the header.
func (h header) fits(body []byte) bool {
	sum := sha256.Sum256(body)
	return len(body) == h.length && hex.EncodeToString(sum[:]) == h.sum
}

func parseHeader(line string) (header, bool) {
	var h header
	f := bytes.Fields([]byte(line))
	if len(f) != 5 || string(f[0]) != magic {
		return h, false
	}
	h.kind = string(f[1])
	var err1, err2 error
	h.version, err1 = strconv.Atoi(string(bytes.TrimPrefix(f[2], []byte("v"))))
	h.sum = string(bytes.TrimPrefix(f[3], []byte("sha256=")))
	h.length, err2 = strconv.Atoi(string(bytes.TrimPrefix(f[4], []byte("len="))))
	return h, err1 == nil && err2 == nil
}
