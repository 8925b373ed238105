package layer

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// parentDir is the directory of the last entry, kept open because the next entry is most often in it too.
type parentDir struct {
	asked string // the path as the entry spelled it
	name  string // the same with its symlinks resolved
	fd    int
}

const (
	beneath      = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV
	maxSymlinks  = 255
	maxPathBytes = 4096
)

func (u *unpacker) closeParent() {
	if u.parent.fd >= 0 {
		unix.Close(u.parent.fd)
	}
	u.parent = parentDir{fd: -1}
}

// openParent makes u.parent the directory dir, following symlinks inside the layer and making what is missing.
func (u *unpacker) openParent(dir string) error {
	if u.parent.fd >= 0 && u.parent.asked == dir && !u.replaced {
		return nil
	}
	u.closeParent()
	name := dir
	fd, err := openBeneath(u.root, dir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		if name, err = u.resolve(dir, true); err != nil {
			return err
		}
		u.closeParent()
		fd, err = openBeneath(u.root, name)
	}
	if err != nil {
		return err
	}
	u.parent = parentDir{dir, name, fd}
	return nil
}

// openBeneath opens the directory at a path that has no symlink in it.
func openBeneath(root int, dir string) (int, error) {
	for {
		fd, err := unix.Openat2(root, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: beneath})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// resolve follows the symlinks of a directory path as a chroot into the layer would: they cannot climb above its root.
// With make, missing directories are made. Without it, a missing one is ENOENT.
func (u *unpacker) resolve(dir string, make bool) (string, error) {
	done, todo, links := ".", strings.Split(dir, "/"), 0
	for len(todo) > 0 {
		c := todo[0]
		todo = todo[1:]
		switch c {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := join(done, c)
		target, err := u.step(next, make)
		if err != nil {
			return "", err
		}
		if target == "" {
			done = next
			continue
		}
		if links++; links > maxSymlinks || len(todo) > maxPathBytes {
			return "", unix.ELOOP
		}
		if path.IsAbs(target) {
			done = "."
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return done, nil
}

// step looks at one component whose parents are real directories: it returns a symlink's target, and "" for a directory,
// which it makes if it may.
func (u *unpacker) step(p string, make bool) (target string, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(u.root, p, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT) && make:
		return "", u.imply(p)
	case err != nil:
		return "", err
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return "", nil
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return readlinkat(u.root, p)
	case isWhiteout(&st) && make:
		return "", u.imply(p)
	case isWhiteout(&st):
		return "", unix.ENOENT
	}
	return "", fmt.Errorf("%s is not a directory: %w", p, unix.ENOTDIR)
}

// imply makes a directory that no entry has described so far.
func (u *unpacker) imply(p string) error {
	fd, err := openBeneath(u.root, parentOf(p))
	if err != nil {
		return err
	}
	u.closeParent()
	u.parent = parentDir{parentOf(p), parentOf(p), fd}
	_, err = u.mkdir(path.Base(p), p)
	return err
}

// farLinkError says that a hard link's target is not in this layer.
type farLinkError struct{ target string }

func (e *farLinkError) Error() string { return "target " + e.target + " is not in this layer" }

// link makes base a further name of the file at target, or says that the file is further down.
func (u *unpacker) link(target, base string, e *entry) error {
	dir, err := u.resolve(parentOf(target), false)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return &farLinkError{target}
	}
	if err != nil {
		return err
	}
	e.Link = join(dir, path.Base(target))
	var st unix.Stat_t
	err = unix.Fstatat(u.root, e.Link, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT), err == nil && isWhiteout(&st):
		return &farLinkError{target}
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return &HostileError{e.Path, "is a hard link to a directory"}
	case e.Link == e.Path:
		return &HostileError{e.Path, "is a hard link to itself"}
	}
	return unix.Linkat(u.root, e.Link, u.parent.fd, base, 0)
}

func isWhiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

func readlinkat(dirfd int, p string) (string, error) {
	buf := make([]byte, maxPathBytes+1)
	n, err := unix.Readlinkat(dirfd, p, buf)
	if err != nil {
		return "", err
	}
	if n == 0 {
		return "", unix.ENOENT
	}
	return string(buf[:n]), nil
}

func join(dir, base string) string {
	if dir == "." {
		return base
	}
	return dir + "/" + base
}
