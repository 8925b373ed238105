// Package diskspace says what is wrong with a file system that takes no more writes: it is full, out of inodes, over
// its quota, read-only or broken. The kernel's errors do not say which, and often not even on which file system.
package diskspace

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/fail/mark"
)

// MakeRoom is what to do about a file system of pods that is full.
const MakeRoom = "remove containers, images or what else is there"

// Error is an error of a file system that takes no more, with words for whoever has to make room.
type Error struct {
	Err  error
	Text string // what is wrong, where, and what to do
}

func (e *Error) Error() string { return e.Err.Error() + ": " + e.Text }

// Details returns what to do about it.
func (e *Error) Details() mark.Detail { return mark.Detail{Remedy: e.Text} }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Lacking says that err comes from a lack of bytes, inodes or quota.
func Lacking(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// Explain adds to an error that comes from the file system of dir, or of the path that the error itself names, what is
// wrong with it and what to do: remedy, such as "remove images", where room is lacking. Other errors, and those
// explained already, come back as they are.
func Explain(err error, dir, remedy string) error {
	var done *Error
	if errors.As(err, &done) {
		return err
	}
	dir = place(err, dir)
	switch {
	case errors.Is(err, unix.ENOSPC):
		if mounts := noMounts(); mounts != "" {
			return &Error{err, mounts}
		}
		return &Error{err, lack(dir) + ": " + remedy + ", or make it larger"}
	case errors.Is(err, unix.EDQUOT):
		return &Error{err, "the disk quota on the file system of " + dir + " is used up: " + remedy + ", or raise it"}
	case errors.Is(err, unix.EROFS):
		return &Error{err, "the file system of " + dir + " is read-only, most likely because the kernel found it broken: " +
			"look at dmesg, repair it and mount it anew"}
	case errors.Is(err, unix.EIO):
		return &Error{err, "the file system of " + dir + " cannot be read or written: its disk fails, or the kernel found " +
			"it broken and shut it down: look at dmesg, repair it and mount it anew"}
	}
	return err
}

// Where the kernel tells how many mounts a mount namespace has, and may have. Tests have their own.
var mountInfo, mountMax = "/proc/thread-self/mountinfo", "/proc/sys/fs/mount-max"

// noMounts says that there can be no more mounts, for which the kernel has no other error than for a full disk; ""
// where there can. What did not fit may have been removed again.
func noMounts() string {
	text, err := os.ReadFile(mountMax)
	most, err2 := strconv.Atoi(strings.TrimSpace(string(text)))
	f, err3 := os.Open(mountInfo)
	if errors.Join(err, err2, err3) != nil {
		return ""
	}
	defer f.Close()
	n, buf := 0, make([]byte, 64<<10)
	for {
		got, err := f.Read(buf)
		n += bytes.Count(buf[:got], []byte{'\n'})
		if err != nil {
			break
		}
	}
	if n < most-most/50 {
		return ""
	}
	return fmt.Sprintf("there are %d mounts of %d that a mount namespace may have: look with findmnt for what leaves "+
		"mounts behind and unmount them, or raise the sysctl fs.mount-max", n, most)
}

// place is dir, unless the error is about a path elsewhere.
func place(err error, dir string) string {
	var one *fs.PathError
	var two *os.LinkError
	path := ""
	switch {
	case errors.As(err, &one):
		path = one.Path
	case errors.As(err, &two):
		path = two.New
	}
	if !filepath.IsAbs(path) || strings.HasPrefix(path, filepath.Clean(dir)+"/") {
		return dir
	}
	return filepath.Dir(path)
}

// lack says how much is left. It may be a lot by now: what did not fit has been removed again.
func lack(dir string) string {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	for ; err == unix.ENOENT && dir != filepath.Dir(dir); err = unix.Statfs(dir, &st) { // it could not be made
		dir = filepath.Dir(dir)
	}
	if err != nil {
		return "the file system of " + dir + " has too little room"
	}
	left := fmt.Sprintf("%d of %d MiB free", mib(st.Bavail, st.Bsize), mib(st.Blocks, st.Bsize))
	if st.Files > 0 {
		left += fmt.Sprintf(", %d of %d inodes", st.Ffree, st.Files)
	}
	return fmt.Sprintf("the file system of %s has too little room (%s)", dir, left)
}

func mib(blocks uint64, size int64) uint64 { return blocks * uint64(size) >> 20 }
