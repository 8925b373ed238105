package layer

import (
	"archive/tar"
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// dirTree has the directories of a layer. Unpack sets their times at the end, because each file that it makes in a
// directory changes them.
type dirTree = pathTree[dirInfo]

// dirInfo describes one directory of the layer.
type dirInfo struct {
	mtime    int64 // in nanoseconds
	uid, gid uint32
	length   uint16 // of its path
	mode     uint16
	below    uint16 // for Finalize: the topmost layer below that has the directory too, counted from 1; 0 is none
	flags    dirFlags
}

type dirFlags uint16

const (
	dirImplied  dirFlags = 1 << iota // the tar has entries in it, but none for the directory itself
	dirDetached                      // it replaced a file or a whiteout of this layer, so it shows nothing from below
	dirOpaque                        // it gets the overlay's opaque mark, which hides what is below
	dirHiding                        // it has whiteouts
	dirMatters                       // it, or a directory in it, is implied or has whiteouts: Finalize visits it
	dirSeen                          // Finalize has visited it
	dirTouched                       // Finalize changed its content, and thereby its times
	dirChanged                       // Finalize changed its metadata, so the manifest needs another line
)

func (d *dirInfo) is(f dirFlags) bool { return d.flags&f != 0 }

// entry returns the manifest entry of a directory.
func (d *dirInfo) entry(path string, xattrs map[string][]byte) entry {
	return entry{
		Path: path, Type: typeDir, Mode: uint32(d.mode), UID: int(d.uid), GID: int(d.gid), Mtime: d.mtime,
		Opaque: d.is(dirOpaque), Xattrs: xattrs,
	}
}

// directory makes the directory of an entry, or gives its metadata to one that is there already.
func (u *unpacker) directory(h *tar.Header, base string) error {
	at := target{u.parent.fd, base}
	if id, ok := u.dirs.child(u.parent.id, base); ok {
		return u.describe(id, at, born{}, h)
	}
	id, err := u.mkdir(base, uint32(h.Mode)&0o777)
	if err != nil {
		return err
	}
	return u.describe(id, at, born{u.dirs.at(u.parent.id), u.defaults}, h)
}

// imply makes a directory for which no entry has come so far.
func (u *unpacker) imply(base string) (nodeID, error) {
	const mode = 0o755
	id, err := u.mkdir(base, mode)
	if err != nil {
		return 0, err
	}
	at, in := target{u.parent.fd, base}, u.dirs.at(u.parent.id)
	if !u.defaults.owner(in, 0, 0) {
		err = at.chown(0, 0)
	}
	if err == nil && !u.defaults.mode(in, typeDir, mode) {
		err = at.chmod(mode)
	}
	return id, err
}

// mkdir makes a directory in the open one. If it replaces a file, it is detached from the layers below.
func (u *unpacker) mkdir(base string, mode uint32) (nodeID, error) {
	info := dirInfo{mode: 0o755, flags: dirImplied}
	length := int(u.dirs.at(u.parent.id).length) + 1 + len(base)
	if err := limit.LayerPath.Check(int64(length)); err != nil {
		return 0, err
	}
	info.length = uint16(length)
	if err := u.res.memory.take(nodeCost + int64(len(base))); err != nil {
		return 0, err
	}
	fd := u.parent.fd
	err := unix.Mkdirat(fd, base, mode)
	if errors.Is(err, unix.EEXIST) {
		info.flags |= dirDetached
		up, _ := u.dirs.path(u.parent.id)
		if err = u.clear(base, join(up, base)); err == nil {
			err = unix.Mkdirat(fd, base, mode)
		}
	}
	if err != nil {
		return 0, err
	}
	if err := u.countInode(0); err != nil {
		return 0, err
	}
	u.res.Bytes += 4096
	delete(u.res.links[u.parent.id], base)
	id := u.dirs.add(u.parent.id, base)
	*u.dirs.at(id) = info
	if info.is(dirDetached) {
		u.makeOpaque(id)
	}
	return id, nil
}

// makeOpaque marks a directory as opaque: it hides what is below. finishOne puts the overlay's mark on the list of
// grants.
func (u *unpacker) makeOpaque(id nodeID) { u.dirs.at(id).flags |= dirOpaque }

// describe gives a directory the metadata of its entry.
func (u *unpacker) describe(id nodeID, to target, b born, h *tar.Header) error {
	e := describeEntry(h, "")
	e.Type = typeDir
	full := "."
	if id != rootNode {
		full = join(u.parent.name, string(u.dirs.nameOf(id)))
	}
	if err := u.applyAt(to, full, b, h, &e); err != nil {
		return err
	}
	d := u.dirs.at(id)
	d.flags &^= dirImplied
	d.mode, d.uid, d.gid, d.mtime = uint16(e.Mode), uint32(e.UID), uint32(e.GID), e.Mtime
	delete(u.xattrs, id)
	if len(e.Xattrs) == 0 {
		return nil
	}
	for name, value := range e.Xattrs {
		if err := u.res.memory.take(nodeCost + int64(len(name)+len(value))); err != nil {
			return err
		}
	}
	u.xattrs[id] = e.Xattrs
	return nil
}

// finish sets the times and default ACLs of all directories, the deepest first, and writes their lines of the manifest.
// Both have to wait for the last entry: files made in a directory change its times and inherit its default ACL.
func (u *unpacker) finish() error {
	if err := u.dropBookkeeping(); err != nil {
		return err
	}
	links := u.res.links
	u.res.links = map[nodeID]map[string]string{}
	w := &dirWalk{ctx: u.ctx, root: u.root, dirs: u.dirs}
	err := w.run(nil, func(id nodeID, fd int, base string) error {
		if in := links[id]; len(in) > 0 {
			u.res.links[id] = in
		}
		return u.finishOne(id, fd, base, w.path())
	})
	root := u.dirs.at(rootNode)
	u.res.Opaque = root.is(dirOpaque)
	u.res.Waits = root.is(dirMatters) || len(u.res.links) > 0
	return err
}

func (u *unpacker) finishOne(id nodeID, fd int, base, path string) error {
	d := u.dirs.at(id)
	if id == rootNode {
		if d.is(dirImplied) && !d.is(dirOpaque) {
			if err := u.grants.add(grant{Path: ".", Kind: grantImplied}); err != nil {
				return err
			}
		}
		if d.is(dirHiding) {
			d.flags |= dirMatters
		}
	} else {
		if d.is(dirImplied | dirHiding) {
			d.flags |= dirMatters
		}
		u.dirs.at(u.dirs.node(id).parent).flags |= d.flags & dirMatters
	}
	if d.is(dirOpaque) {
		if err := u.grants.add(grant{Path: path, Kind: grantOpaque}); err != nil {
			return err
		}
	}
	if err := u.keepDefaultACL(id, fd, base); err != nil {
		return wrapEntry(path, err)
	}
	if err := setTimes(fd, base, time.Unix(0, d.mtime)); err != nil {
		return wrapEntry(path, err)
	}
	return u.man.add(d.entry(path, u.xattrs[id]))
}

// impliedRoot is an attribute of the tree of a layer without an entry for its root. Package rootfs then takes the
// metadata of the root from a layer below.
const impliedRoot = "trusted.berth.implied"

const opaqueXattr = "trusted.overlay.opaque"

// dropBookkeeping removes the directories .wh..wh.* at the root, in which aufs kept the targets of hard links.
func (u *unpacker) dropBookkeeping() error {
	for id := range u.dirs.children(rootNode) {
		p := string(u.dirs.nameOf(id))
		if !strings.HasPrefix(p, ".wh..wh.") {
			continue
		}
		if err := u.openParent("."); err != nil {
			return err
		}
		if err := u.clear(p, p); err != nil {
			return wrapEntry(p, err)
		}
	}
	return nil
}

// dirWalk visits the directories of a layer. It keeps the current one open, so that a step costs the same at any depth.
type dirWalk struct {
	ctx       context.Context
	root      int // descriptor of the layer's tree
	dirs      *dirTree
	skip      func(nodeID) bool // reports which directories to leave out; may be nil
	dirHandle                   // the parent of the visited directory
	name      []byte            // the path of the visited directory
}

// run calls before for each directory before it visits those in it, and after afterwards; either may be nil. Both get a
// descriptor of the directory's parent and the directory's name there; for the root, the root itself and ".".
func (w *dirWalk) run(before, after func(id nodeID, fd int, base string) error) error {
	fd, err := unix.Openat(w.root, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	w.dirHandle = noHandle()
	w.put(rootNode, fd)
	defer w.close()
	return w.visit(rootNode, before, after)
}

func (w *dirWalk) visit(id nodeID, before, after func(nodeID, int, string) error) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	base := "."
	if id != rootNode {
		base = string(w.dirs.nameOf(id))
	}
	if before != nil {
		if err := before(id, w.fd, base); err != nil {
			return err
		}
	}
	if err := w.children(id, base, before, after); err != nil || after == nil {
		return err
	}
	return after(id, w.fd, base)
}

// children visits the directories in a directory, which it opens only when there are any.
func (w *dirWalk) children(id nodeID, base string, before, after func(nodeID, int, string) error) error {
	inside := false
	for c := range w.dirs.children(id) {
		if w.skip != nil && w.skip(c) {
			continue
		}
		if !inside && id != rootNode {
			if err := w.descend(id, base); err != nil {
				return err
			}
		}
		inside = true
		size := len(w.name)
		if size > 0 {
			w.name = append(w.name, '/')
		}
		w.name = append(w.name, w.dirs.nameOf(c)...)
		err := w.visit(c, before, after)
		w.name = w.name[:size]
		if err != nil {
			return err
		}
	}
	if !inside || id == rootNode {
		return nil
	}
	return w.ascend(id)
}

// descend opens a directory in the open one.
func (w *dirWalk) descend(id nodeID, name string) error {
	fd, err := unix.Openat(w.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		w.put(id, fd)
	}
	return err
}

// ascend goes back to the parent of the open directory. Where the parent is no longer open, it is opened by "..".
func (w *dirWalk) ascend(id nodeID) error {
	up := w.dirs.node(id).parent
	if len(w.above) > 0 {
		w.leave()
		return nil
	}
	if err := w.descend(up, ".."); err != nil {
		return err
	}
	unix.Close(w.above[0].fd)
	w.above = w.above[:0]
	return nil
}

// path returns the path of the visited directory.
func (w *dirWalk) path() string {
	if len(w.name) == 0 {
		return "."
	}
	return string(w.name)
}
