package layer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// copyNode copies one thing that is no directory, with all that belongs to it.
func copyNode(from, to string) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return err
	}
	if err := copyContent(from, to, &st); err != nil {
		return err
	}
	if err := disinherit(to); err != nil {
		return err
	}
	return copyMetadata(from, to, &st)
}

func copyContent(from, to string, st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return copyFile(from, to)
	case unix.S_IFLNK:
		target, err := readlinkat(unix.AT_FDCWD, from)
		if err != nil {
			return err
		}
		return unix.Symlink(target, to)
	}
	return unix.Mknod(to, st.Mode&unix.S_IFMT|0o600, int(st.Rdev))
}

func copyFile(from, to string) error {
	in, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// copyMetadata gives to the owner, mode, xattrs and times of from, whose stat is st.
func copyMetadata(from, to string, st *unix.Stat_t) error {
	if err := unix.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
			return err
		}
	}
	attrs, err := xattrs(from)
	if err != nil {
		return err
	}
	for name, value := range attrs {
		if err := unix.Lsetxattr(to, name, value, 0); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return setTimes(unix.AT_FDCWD, to, time.Unix(0, st.Mtim.Nano()))
}

// xattrs reads the attributes that belong to the file; the overlay's own are not among them.
func xattrs(full string) (map[string][]byte, error) {
	buf := make([]byte, 64<<10) // the kernel's limit for a list of names
	n, err := unix.Llistxattr(full, buf)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out map[string][]byte
	for _, name := range strings.Split(string(buf[:n]), "\x00") {
		if name == "" || strings.HasPrefix(name, "trusted.") || name == "security.selinux" {
			continue
		}
		value, err := lgetxattr(full, name)
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = map[string][]byte{}
		}
		out[name] = value
	}
	return out, nil
}

// observe describes what is on disk as the manifest would.
func observe(root, p string) (entry, error) {
	full := filepath.Join(root, p)
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); err != nil {
		return entry{}, err
	}
	e := entry{Path: p, Type: typeOf(&st), Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid), Mtime: st.Mtim.Nano()}
	var err error
	switch e.Type {
	case typeFile:
		e.Size = st.Size
		e.Hash, err = hashFile(full)
	case typeSymlink:
		e.Link, err = os.Readlink(full)
	case typeChar, typeBlock:
		e.Dev = st.Rdev
	case typeWhiteout:
		return entry{Path: p, Type: typeWhiteout}, nil
	}
	if err != nil {
		return entry{}, err
	}
	e.Xattrs, err = xattrs(full)
	return e, err
}
