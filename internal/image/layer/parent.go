package layer

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// parentDir is the directory of the last entry, kept open because the next entry is most often in it too.
type parentDir struct {
	dirHandle
	asked string // the path as the entry spelled it; "" when another one was opened since
	name  string // the same with its symlinks resolved
}

// dirHandle is an open directory of the layer, with some of those above it: a tar goes back to them when it is done
// with one below.
type dirHandle struct {
	openDir
	above []openDir
}

type openDir struct {
	id nodeID
	fd int // -1 when none is open
}

// dirsAbove is how many directories stay open above one: a tar may be thousands deep.
const dirsAbove = 8

func noHandle() dirHandle { return dirHandle{openDir: openDir{fd: -1}} }

func (d *dirHandle) close() {
	for d.fd >= 0 {
		d.leave()
	}
}

// leave goes back to the nearest directory above that is open.
func (d *dirHandle) leave() {
	if d.fd >= 0 {
		unix.Close(d.fd)
	}
	last := len(d.above) - 1
	if last < 0 {
		d.openDir = noHandle().openDir
		return
	}
	d.openDir, d.above = d.above[last], d.above[:last]
}

// put makes fd the open directory, below the one that was.
func (d *dirHandle) put(id nodeID, fd int) {
	if d.fd >= 0 {
		d.above = append(d.above, d.openDir)
	}
	if len(d.above) > dirsAbove {
		unix.Close(d.above[0].fd)
		d.above = append(d.above[:0], d.above[1:]...)
	}
	d.openDir = openDir{id, fd}
}

// enter opens a directory of the tree below root, from its parent when that is open: a path of thousands of
// components is not walked anew for each of them.
func (d *dirHandle) enter(root int, dirs *dirTree, id nodeID) error {
	up := noNode
	if id != rootNode {
		up = dirs.node(id).parent
	}
	for d.fd >= 0 && d.id != id && d.id != up {
		d.leave()
	}
	if d.fd >= 0 && d.id == id {
		return nil
	}
	from, name := root, "."
	if d.fd >= 0 {
		from, name = d.fd, string(dirs.nameOf(id))
	} else {
		name, _ = dirs.path(id)
	}
	fd, err := openBeneath(from, name)
	if err != nil {
		d.close()
		return err
	}
	d.put(id, fd)
	return nil
}

const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// openBeneath opens the directory at a path that has no symlink in it.
func openBeneath(root int, dir string) (int, error) {
	for {
		fd, err := unix.Openat2(root, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: beneath})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// openParent makes u.parent the directory dir, following symlinks inside the layer and making what is missing.
func (u *unpacker) openParent(dir string) error {
	if u.parent.fd >= 0 && u.parent.asked == dir && !u.replaced {
		return nil
	}
	u.parent.asked = ""
	id, rest := u.dirs.find(dir)
	if rest != "" {
		var err error
		if id, err = u.resolve(&u.parent.dirHandle, dir, true); err != nil {
			return err
		}
	}
	if err := u.parent.enter(u.root, u.dirs, id); err != nil {
		return err
	}
	u.parent.asked = dir
	u.parent.name, _ = u.dirs.path(id)
	return nil
}

// resolve follows the symlinks of a directory path as a chroot into the layer would: they cannot climb above its root.
// With make, missing directories are made, in u.parent, which in must be then. Without it, a missing one is ENOENT.
func (u *unpacker) resolve(in *dirHandle, dir string, make bool) (nodeID, error) {
	done, walk := rootNode, newSteps(dir)
	for {
		c, err := walk.next(u.ctx)
		if c == "" || err != nil {
			return done, err
		}
		if c == ".." {
			if done != rootNode {
				done = u.dirs.node(done).parent
			}
			continue
		}
		if id, ok := u.dirs.child(done, c); ok {
			done = id
			continue
		}
		if err := in.enter(u.root, u.dirs, done); err != nil {
			return 0, err
		}
		target, err := u.step(in.fd, c, make)
		if err != nil {
			return 0, err
		}
		if target == "" {
			if done, err = u.imply(c); err != nil {
				return 0, err
			}
			continue
		}
		if err := walk.follow(target); err != nil {
			return 0, err
		}
		if path.IsAbs(target) {
			done = rootNode
		}
	}
}

// step looks at what is no directory: it returns a symlink's target, and "" where a directory is to be made.
func (u *unpacker) step(fd int, name string, make bool) (target string, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	missing := errors.Is(err, unix.ENOENT) || err == nil && isWhiteout(&st)
	switch {
	case missing && make:
		return "", nil
	case missing:
		return "", unix.ENOENT
	case err != nil:
		return "", err
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return readlinkat(fd, name)
	}
	return "", fmt.Errorf("%s is not a directory: %w", begin(name), unix.ENOTDIR)
}

// steps are the components that a path leads through.
type steps struct {
	todo        string
	taken, link int
}

func newSteps(path string) *steps { return &steps{todo: path} }

// next returns the next component that leads anywhere, "" at the end.
func (s *steps) next(ctx interface{ Err() error }) (string, error) {
	for s.todo != "" {
		var c string
		c, s.todo, _ = strings.Cut(s.todo, "/")
		s.taken++
		if err := limit.LayerSteps.Check(int64(s.taken)); err != nil {
			return "", err
		}
		if s.taken%64 == 0 {
			if err := ctx.Err(); err != nil {
				return "", err
			}
		}
		if c != "" && c != "." {
			return c, nil
		}
	}
	return "", nil
}

// follow goes on at the target of a symlink.
func (s *steps) follow(target string) error {
	if s.link++; s.link > maxLinks {
		return unix.ELOOP
	}
	if s.todo != "" {
		target += "/" + s.todo
	}
	if err := limit.LayerTarget.Check(int64(len(target))); err != nil {
		return err
	}
	s.todo = target
	return nil
}

// rest reports whether any real component is left.
func (s *steps) rest() bool {
	return strings.Trim(s.todo, "/.") != "" || strings.Contains(s.todo, "..")
}

// farLinkError says that a hard link's target is not in this layer.
type farLinkError struct{ target string }

func (e *farLinkError) Error() string { return "target " + e.target + " is not in this layer" }

// link makes base a further name of the file at target, or says that the file is further down.
func (u *unpacker) link(target, base string, e *entry) error {
	in := noHandle()
	defer in.close()
	dir, rest := u.dirs.find(parentOf(target))
	if rest != "" {
		var err error
		dir, err = u.resolve(&in, parentOf(target), false)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return &farLinkError{target}
		}
		if err != nil {
			return err
		}
	}
	up, _ := u.dirs.path(dir)
	e.Link = join(up, path.Base(target))
	var st unix.Stat_t
	err := unix.Fstatat(u.root, e.Link, &st, unix.AT_SYMLINK_NOFOLLOW)
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
	if err := unix.Linkat(u.root, e.Link, u.parent.fd, base, 0); err != nil {
		return err
	}
	return u.grants.linked(e.Path, e.Link, u.man.lines+1)
}

func isWhiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

func readlinkat(dirfd int, p string) (string, error) {
	buf := make([]byte, maxPath+1)
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
