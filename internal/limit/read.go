package limit

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNotRegular says that something else is where a file is to be read.
var ErrNotRegular = errors.New("it is not a regular file")

// ReadFile reads a regular file of at most so many bytes. A FIFO, which to open would wait for a writer for ever, or a
// device, is refused with ErrNotRegular.
func ReadFile(path string, most Budget) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll("read", f, most)
}

// Open opens a regular file to be read, and refuses what else there may be as ReadFile does.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "read", Path: path, Err: ErrNotRegular}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// CheckFile looks whether a library may open and read a file by itself: it refuses what to open would wait for ever, or
// to read would never end, and more than so many bytes. /dev/null, by which a file is masked, may be read. What cannot
// be looked at is left to whoever opens it to report.
func CheckFile(path string, most Budget) error {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() {
		return nil
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	masked := ok && info.Mode()&fs.ModeCharDevice != 0 && st.Rdev == unix.Mkdev(1, 3)
	switch {
	case masked:
		return nil
	case !info.Mode().IsRegular():
		return &os.PathError{Op: "read", Path: path, Err: ErrNotRegular}
	case info.Size() > most.Limit:
		return &os.PathError{Op: "read", Path: path, Err: most.Exceeded()}
	}
	return nil
}

// CheckFiles is CheckFile of those files of a directory that a library opens. A directory that cannot be read is left
// to the library to report.
func CheckFiles(dir string, opened func(fs.DirEntry) bool, most Budget) error {
	entries, _ := os.ReadDir(dir)
	var errs []error
	for _, e := range entries {
		if opened(e) {
			errs = append(errs, CheckFile(filepath.Join(dir, e.Name()), most))
		}
	}
	return errors.Join(errs...)
}

// ReadAll reads an open file of at most so many bytes. op is what an error says was done.
func ReadAll(op string, f *os.File, most Budget) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, most.Limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most.Limit {
		return nil, &os.PathError{Op: op, Path: f.Name(), Err: most.Exceeded()}
	}
	return data, nil
}
