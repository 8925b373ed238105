package layer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// spot is a file of a layer, for system calls that take a directory descriptor and a name in that directory. A path
// from the root of the host would exceed the kernel's limit where the path in the layer comes close to it.
type spot struct {
	fd   int
	base string
}

// openSpot opens the parent directory of the path p below root. It fails where a symlink is on the way.
func openSpot(root int, p string) (spot, error) {
	fd, err := openBeneath(root, parentOf(p))
	return spot{fd, path.Base(p)}, err
}

func (s spot) close() { unix.Close(s.fd) }

func (s spot) host() string { return procPath(s.fd, s.base) }

// copyNode copies a file of any type but a directory, with its metadata, to the path full of the layer, and returns the
// manifest entry of the copy.
func copyNode(ctx context.Context, from, to spot, full string, grants *grantList) (entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(from.fd, from.base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return entry{}, err
	}
	if err := copyContent(ctx, from, to, &st, full, grants); err != nil {
		return entry{}, err
	}
	if err := disinherit(to.host()); err != nil {
		return entry{}, err
	}
	if err := copyMetadata(from, to, &st, granted(grants, full)); err != nil {
		return entry{}, err
	}
	return observeCopy(ctx, from, to)
}

// observeCopy returns the manifest entry of a copy. What Grant has still to do (the type of a device, attributes) it
// reads from the original.
func observeCopy(ctx context.Context, from, to spot) (entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(to.fd, to.base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return entry{}, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFSOCK {
		return observeAt(ctx, from)
	}
	e, err := observeAt(ctx, to)
	if err == nil {
		e.Xattrs, err = xattrs(from.host())
	}
	return e, err
}

func copyContent(ctx context.Context, from, to spot, st *unix.Stat_t, full string, grants *grantList) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return copyFile(ctx, from, to)
	case unix.S_IFLNK:
		target, err := readlinkat(from.fd, from.base)
		if err != nil {
			return err
		}
		return unix.Symlinkat(target, to.fd, to.base)
	}
	if kind := typeOf(st); kind == typeChar || kind == typeBlock {
		return grants.device(to, full, entry{Type: kind, Mode: st.Mode, Dev: st.Rdev}, 0)
	}
	return unix.Mknodat(to.fd, to.base, st.Mode&unix.S_IFMT|0o600, int(st.Rdev))
}

// copyPiece is how many bytes are copied before the context is checked again.
const copyPiece = 16 << 20

func copyFile(ctx context.Context, from, to spot) error {
	in, err := openFile(from)
	if err != nil {
		return err
	}
	defer in.Close()
	fd, err := unix.Openat(to.fd, to.base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(fd), to.base)
	for err == nil {
		if err = ctx.Err(); err == nil {
			_, err = io.CopyN(out, in, copyPiece)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, out.Close())
}

func openFile(s spot) (*os.File, error) {
	fd, err := unix.Openat(s.fd, s.base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), s.base), nil
}

// attrNoter takes an attribute that the process may not set itself, and reports whether it did.
type attrNoter func(name string, value []byte) (noted bool, err error)

// granted puts such attributes of the file at a path on the list of grants.
func granted(grants *grantList, full string) attrNoter {
	return func(name string, value []byte) (bool, error) { return grants.xattr(full, name, value, 0) }
}

// copyMetadata gives the file `to` the owner, mode, xattrs and times of the file `from`, whose stat is st. Each
// attribute is offered to note first, unless note is nil.
func copyMetadata(from, to spot, st *unix.Stat_t, note attrNoter) error {
	if err := unix.Fchownat(to.fd, to.base, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(to.fd, to.base, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	attrs, err := xattrs(from.host())
	if err != nil {
		return err
	}
	for name, value := range attrs {
		if note != nil {
			if noted, err := note(name, value); noted || err != nil {
				if err != nil {
					return err
				}
				continue
			}
		}
		if err := setXattr(to.host(), name, value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return setTimes(to.fd, to.base, time.Unix(0, st.Mtim.Nano()))
}

// xattrs reads the attributes of a file, without those of the overlay (trusted.*) and without its SELinux label.
func xattrs(full string) (map[string][]byte, error) {
	buf := make([]byte, 256)
	n, err := unix.Llistxattr(full, buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, 64<<10) // the kernel's limit for a list of names
		n, err = unix.Llistxattr(full, buf)
	}
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

// observe returns the manifest entry of the file at the path p below root.
func observe(ctx context.Context, root int, p string) (entry, error) {
	s, err := openSpot(root, p)
	if err != nil {
		return entry{}, err
	}
	defer s.close()
	e, err := observeAt(ctx, s)
	e.Path = p
	return e, err
}

func observeAt(ctx context.Context, s spot) (entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(s.fd, s.base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return entry{}, err
	}
	e := entry{Type: typeOf(&st), Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid), Mtime: st.Mtim.Nano()}
	var err error
	switch e.Type {
	case typeFile:
		e.Size = st.Size
		e.Hash, err = hashFile(ctx, s)
	case typeSymlink:
		e.Link, err = readlinkat(s.fd, s.base)
	case typeChar, typeBlock:
		e.Dev = st.Rdev
	case typeWhiteout:
		return entry{Type: typeWhiteout}, nil
	}
	if err != nil {
		return entry{}, err
	}
	e.Xattrs, err = xattrs(s.host())
	return e, err
}

func hashFile(ctx context.Context, s spot) (string, error) {
	f, err := openFile(s)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	buf := takeBuffer()
	defer giveBuffer(buf)
	if err := hashAll(ctx, h, f, buf); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func hashAll(ctx context.Context, h hash.Hash, r io.Reader, buf []byte) error {
	for {
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}
