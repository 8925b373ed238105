package layer

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// parentDir is the directory of the last entry. It stays open because the next entry is usually in it too.
type parentDir struct {
	dirHandle
	asked string // the path as the entry has it; "" while another directory is open
	name  string // the same path with symlinks resolved
}

// dirHandle is an open directory of the layer. Some of the directories above it stay open too, because a tar goes back
// to them after the entries of a directory.
type dirHandle struct {
	openDir
	above []openDir
}

type openDir struct {
	id nodeID
	fd int // -1 if none is open
}

// dirsAbove bounds how many directories above stay open: a tar may be thousands deep.
const dirsAbove = 8

func noHandle() dirHandle { return dirHandle{openDir: openDir{fd: -1}} }

func (d *dirHandle) close() {
	for d.fd >= 0 {
		d.leave()
	}
}

// leave closes the directory and goes back to the nearest one above that is open.
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

// put makes fd the open directory, and the previous one the directory above it.
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

// enter opens a directory of the tree below root, relative to its parent if that is open. So a path of thousands of
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

// openBeneath opens the directory at a path. It fails where a symlink is on the way.
func openBeneath(root int, dir string) (int, error) {
	for {
		fd, err := unix.Openat2(root, dir,
			&unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: beneath})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// openParent makes dir the open parent directory. It follows symlinks inside the layer and makes missing directories.
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

// resolve follows the symlinks of a directory path as a process in a chroot of the layer would: ".." at the root stays
// at the root. With make, it makes missing directories in u.parent, and in must be u.parent's handle. Without make, a
// missing directory is ENOENT.
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

// step looks at a name that is no known directory. It returns the target of a symlink, "" if the directory has to be
// made, and an error otherwise.
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

// steps iterates over the components of a path and of the symlinks on its way.
type steps struct {
	todo        string
	taken, link int
}

func newSteps(path string) *steps { return &steps{todo: path} }

// next returns the next component other than ".", or "" at the end.
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

// follow continues with the target of a symlink.
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

// rest reports whether a component other than "." is left.
func (s *steps) rest() bool {
	return strings.Trim(s.todo, "/.") != "" || strings.Contains(s.todo, "..")
}

// farLinkError is returned for a hard link whose target is not in this layer.
type farLinkError struct{ target string }

func (e *farLinkError) Error() string { return "target " + e.target + " is not in this layer" }

// link makes base a hard link to the file at target. It returns a farLinkError if the layer has no such file.
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
	return u.grants.linked(e.Path, e.Link, u.man.lines+1, u.res.gone)
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
