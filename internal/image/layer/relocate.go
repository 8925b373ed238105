package layer

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// nodeName is a name in a directory of the layer.
type nodeName struct {
	in   nodeID
	base string
}

// relocated records what has moved, beside what the tree of directories tells. It is charged to Limits.Memory.
type relocated struct {
	into map[nodeID]nodeID // directories that were merged into another, and which
	// Two paths of the tar may lead to one file, if one of them has a symlink below. stays has the directory from which
	// the file came that won; goes has the whiteouts that lost.
	stays map[nodeName]nodeID
	goes  map[nodeName]struct{}
	fresh []nodeID // directories with a new path, which are to be visited
	known []nodeID // directories that others were merged into, and that have not been visited
}

func newRelocated() relocated {
	return relocated{into: map[nodeID]nodeID{}, stays: map[nodeName]nodeID{}, goes: map[nodeName]struct{}{}}
}

// now returns the directory that has the files of id now.
func (r *relocated) now(id nodeID) nodeID {
	for {
		to, ok := r.into[id]
		if !ok {
			return id
		}
		id = to
	}
}

// relocateOne moves the files of an implied directory that covers a symlink to the directory that the symlink leads to.
func (s *finalizer) relocateOne(id nodeID) error {
	p, _ := s.dirs.path(id)
	to, err := s.lower.resolve(p, true)
	switch {
	case err != nil:
		return fmt.Errorf("resolve %s below: %w", begin(p), err)
	case to.exists && to.kind() != unix.S_IFDIR:
		return fmt.Errorf("%s leads to %s, which is not a directory: %w", begin(p), begin(to.path), unix.ENOTDIR)
	case to.path == p || strings.HasPrefix(to.path, p+"/"):
		return fmt.Errorf("%s leads into itself: %w", begin(p), unix.ELOOP)
	}
	if s.before == nil {
		s.before = s.dirs.clone()
	}
	target, err := s.mkdirAll(to.path)
	if err != nil {
		return err
	}
	s.moved.fresh, s.moved.known = nil, nil
	if err := s.merge(id, target); err != nil {
		return err
	}
	if err := s.noteMoved(p, to.path); err != nil {
		return err
	}
	return s.visitMoved()
}

// noteMoved records in the tar-split metadata that the files at and below one path are at another now.
func (s *finalizer) noteMoved(from, to string) error {
	if err := s.res.memory.take(2*nodeCost + int64(len(from)+len(to))); err != nil {
		return err
	}
	sk, err := s.tarSplit()
	if err != nil {
		return err
	}
	return sk.moved(from, to)
}

// visitMoved visits the directories that have a new path, because they may cover something else there.
func (s *finalizer) visitMoved() error {
	for _, id := range s.moved.known {
		if _, err := s.coversOf(id); err != nil {
			return err
		}
	}
	fresh := s.moved.fresh
	parent, inside := noNode, merged{}
	for _, id := range fresh {
		if up := s.dirs.node(id).parent; up != parent {
			var err error
			if parent = up; s.anyGone(up) {
				continue
			}
			if inside, err = s.coversOf(up); err != nil {
				return err
			}
		}
		if err := s.visit(id, inside); err != nil {
			return err
		}
	}
	return nil
}

func (s *finalizer) anyGone(id nodeID) bool {
	_, ok := s.dirs.path(id)
	return !ok
}

// merge moves everything from the directory from into the directory to, and removes from.
func (s *finalizer) merge(from, to nodeID) error {
	fromPath, _ := s.dirs.path(from)
	toPath, _ := s.dirs.path(to)
	src, err := openBeneath(s.own, fromPath)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	dst, err := openBeneath(s.own, toPath)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	for again := true; again; { // one reading of a directory may miss names while others are moved out of it
		again = false
		err := eachName(s.ctx, src, ".", func(_ int, name string) error {
			again = true
			return s.mergeName(from, to, src, dst, name, toPath)
		})
		if err != nil {
			return err
		}
	}
	if err := s.mergeDirs(from, to, spot{src, "."}, spot{dst, "."}); err != nil {
		return err
	}
	if !s.dirs.at(to).is(dirSeen) {
		s.moved.known = append(s.moved.known, to)
	}
	s.note(to, dirTouched)
	s.note(s.dirs.node(from).parent, dirTouched)
	s.dirs.remove(from)
	s.moved.into[from] = to
	s.res.Inodes, s.res.Bytes = s.res.Inodes-1, s.res.Bytes-4096
	up, err := openSpot(s.own, fromPath)
	if err != nil {
		return err
	}
	defer up.close()
	return unix.Unlinkat(up.fd, up.base, unix.AT_REMOVEDIR)
}

// mergeDirs merges the bookkeeping and the metadata of two directories.
func (s *finalizer) mergeDirs(from, to nodeID, src, dst spot) error {
	a, b := s.dirs.at(from), s.dirs.at(to)
	for base, target := range s.links[from] {
		if s.links[to] == nil {
			s.links[to] = map[string]string{}
		}
		s.links[to][base] = target
	}
	delete(s.links, from)
	if a.is(dirHiding) {
		s.note(to, dirHiding)
	}
	if a.is(dirOpaque) {
		s.makeOpaque(to)
	}
	if a.is(dirImplied) || !b.is(dirImplied) {
		return nil
	}
	// Only the directory from has an entry of the tar, so its metadata is that of the merged directory.
	var st unix.Stat_t
	if err := unix.Fstatat(src.fd, src.base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	b.uid, b.gid, b.mode, b.mtime = a.uid, a.gid, a.mode, a.mtime
	b.flags &^= dirImplied
	s.note(to, dirChanged)
	return copyMetadata(src, dst, &st, granted(s.grants, s.pathOf(to)))
}

// pathOf returns the present path of a directory.
func (s *finalizer) pathOf(id nodeID) string {
	p, _ := s.dirs.path(id)
	return p
}

// mergeName moves one name. A file that is moved replaces one that is there; a whiteout does not, because it hides only
// the layers below.
func (s *finalizer) mergeName(from, to nodeID, src, dst int, name, toPath string) error {
	var a, b unix.Stat_t
	if err := unix.Fstatat(src, name, &a, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	err := unix.Fstatat(dst, name, &b, unix.AT_SYMLINK_NOFOLLOW)
	taken := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	isDir, wasDir := a.Mode&unix.S_IFMT == unix.S_IFDIR, taken && b.Mode&unix.S_IFMT == unix.S_IFDIR
	var moving nodeID
	if isDir {
		moving, _ = s.dirs.child(from, name)
	}
	switch {
	case isDir && wasDir:
		into, _ := s.dirs.child(to, name)
		return s.merge(moving, into)
	case isWhiteout(&a) && (taken || s.links[to][name] != ""):
		return s.dropWhiteout(nodeName{from, strings.Clone(name)}, to, src, wasDir)
	case taken:
		if err := s.drop(to, spot{dst, name}, join(toPath, name), &b); err != nil {
			return err
		}
		if err := s.noteBoth(name); err != nil {
			return err
		}
		s.moved.stays[nodeName{to, strings.Clone(name)}] = from
	}
	delete(s.links[to], name)
	if err := unix.Renameat(src, name, dst, name); err != nil {
		return err
	}
	if !isDir {
		return nil
	}
	s.dirs.move(moving, to)
	if s.dirs.at(moving).is(dirMatters) {
		s.note(to, 0)
	}
	s.moved.fresh = append(s.moved.fresh, moving)
	if taken && isWhiteout(&b) {
		s.detach(moving)
	}
	return nil
}

// noteBoth charges the memory for a name that two paths of the tar lead to.
func (s *finalizer) noteBoth(name string) error {
	return s.res.memory.take(nodeCost + int64(len(name)))
}

// dropWhiteout removes a whiteout that would move to a name which the layer has a file of. If that is a directory, it
// is detached from the layers below.
func (s *finalizer) dropWhiteout(what nodeName, to nodeID, src int, overDir bool) error {
	if err := s.noteBoth(what.base); err != nil {
		return err
	}
	s.moved.goes[what] = struct{}{}
	s.res.Inodes--
	if err := unix.Unlinkat(src, what.base, 0); err != nil || !overDir {
		return err
	}
	id, _ := s.dirs.child(to, what.base)
	s.detach(id)
	return nil
}

// detach makes a directory of the layer hide the layers below.
func (s *finalizer) detach(id nodeID) {
	s.dirs.at(id).flags |= dirDetached
	s.makeOpaque(id)
}

// makeOpaque marks a directory as opaque: it hides what is below. finishOne puts the overlay's mark on the list of
// grants.
func (s *finalizer) makeOpaque(id nodeID) { s.note(id, dirOpaque|dirChanged) }

// drop removes a file, whose stat is st, to make its name free. full is its path in the layer.
func (s *finalizer) drop(in nodeID, at spot, full string, st *unix.Stat_t) error {
	freed, err := s.old.take(at.fd, at.base, full)
	if err != nil {
		return err
	}
	s.res.Bytes, s.res.Inodes = s.res.Bytes-freed.bytes, s.res.Inodes-freed.inodes
	s.replaced = s.replaced || !isWhiteout(st)
	s.note(in, dirTouched)
	if id, ok := s.dirs.child(in, at.base); ok {
		s.dirs.remove(id)
	}
	return nil
}

// record updates the manifest. It appends lines; if directories have moved, it first rewrites the others.
func (s *finalizer) record() error {
	lines := s.more.lines
	err := s.more.close()
	s.more = nil
	if err != nil {
		return err
	}
	name := s.manifest()
	if s.before == nil && lines == 0 {
		return os.Remove(name + ".more")
	}
	if s.before != nil {
		if err := s.rewrite(name); err != nil {
			return err
		}
	}
	return appendFile(name, name+".more")
}

// rewrite writes the manifest anew, with the present path of each entry.
func (s *finalizer) rewrite(name string) error {
	w, err := createManifest(name + ".new")
	if err != nil {
		return err
	}
	err = eachLine(s.ctx, name, func(line int64, e entry) error {
		if e.Type == typeGone || goneAfter(s.res.gone, e.Path, line) {
			return nil
		}
		path, ok := s.pathNow(e)
		if !ok {
			return nil
		}
		if err := limit.LayerPath.Check(int64(len(path))); err != nil {
			return err
		}
		e.Path = path
		if e.Type == typeLink {
			e.Link = s.now(e.Link)
		}
		return w.add(e)
	})
	if err = errors.Join(err, w.close()); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// pathNow returns the present path of a manifest entry; ok is false if its file is gone.
func (s *finalizer) pathNow(e entry) (path string, ok bool) {
	if e.Type == typeDir {
		id, rest := s.before.find(e.Path)
		if _, gone := s.moved.into[id]; gone || rest != "" {
			return "", false
		}
		return s.dirs.path(id)
	}
	up := parentOf(e.Path)
	in, rest := s.before.find(up)
	if rest != "" {
		return "", false
	}
	base := e.Path
	if up != "." {
		base = e.Path[len(up)+1:]
	}
	if _, gone := s.moved.goes[nodeName{in, base}]; gone {
		return "", false
	}
	now := s.moved.now(in)
	if from, two := s.moved.stays[nodeName{now, base}]; two && from != in {
		return "", false
	}
	if up, ok = s.dirs.path(now); !ok {
		return "", false
	}
	return join(up, base), true
}

// now returns the present path of a file that had the path p before directories moved.
func (s *finalizer) now(p string) string {
	if s.before == nil || p == "." {
		return p
	}
	id, rest := s.before.find(p)
	to, ok := s.dirs.path(s.moved.now(id))
	switch {
	case !ok:
		return p
	case rest == "":
		return to
	}
	return join(to, rest)
}
