package layer

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"golang.org/x/sys/unix"
)

// Settle finishes the layer in dir, which Unpack left with res, over the trees lowers, the topmost first. It may be called
// once. On an error what is in dir is worthless.
func Settle(dir string, res *Result, lowers []string) error {
	if res.Independent() {
		return nil
	}
	own := filepath.Join(dir, FS)
	s := &settler{dir: dir, own: own, lower: view(lowers), both: append(view{own}, lowers...), res: res}
	s.attic = &attic{dir, s.skeleton, -1}
	if done, err := s.nothingToDo(); done || err != nil {
		return err
	}
	var err error
	if s.man, err = readManifest(filepath.Join(dir, ManifestFile)); err != nil {
		return err
	}
	for _, pass := range []func() error{s.relocate, s.link, s.closeSkeleton, s.reunite, s.adopt, s.unhide, s.times} {
		if err := pass(); err != nil {
			return fmt.Errorf("settle layer: %w", errors.Join(err, s.closeSkeleton()))
		}
	}
	res.Bytes, res.Inodes = s.man.usage()
	res.Bytes += kept(dir)
	res.implied, res.links, res.hiding = nil, nil, nil
	return s.man.write(dir)
}

type settler struct {
	dir, own    string
	lower, both view
	man         manifest
	res         *Result
	attic       *attic
	sk          *skeletonWriter   // once a file has moved
	replaced    bool              // a name of the layer was taken by another of its own
	seen        map[string]covers // what below found, until names change
}

// covers is what a path of the layer covers, and when that is a directory, the trees' directories that make it up.
type covers struct {
	at   place
	dirs dirs
}

// skeleton opens the layer's skeleton for notes of files that move.
func (s *settler) skeleton() (_ *skeletonWriter, err error) {
	if s.sk == nil {
		s.sk, err = appendSkeleton(s.dir)
	}
	return s.sk, err
}

func (s *settler) closeSkeleton() error {
	sk := s.sk
	s.sk = nil
	if sk == nil {
		return nil
	}
	return sk.close()
}

// nothingToDo says that the layer has whiteouts only, and that they all hide something.
func (s *settler) nothingToDo() (bool, error) {
	if len(s.res.implied) > 0 || len(s.res.links) > 0 {
		return false, nil
	}
	for dir := range s.res.hiding {
		merged, err := s.merged(dir)
		if err != nil || !merged {
			return false, err
		}
	}
	return true, nil
}

// merged says whether the overlay makes a directory of this layer one with those below. Only there it keeps whiteouts to
// itself; elsewhere it lists them as names that lead to nothing.
func (s *settler) merged(dir string) (bool, error) {
	for up := dir; ; up = parentOf(up) {
		if isOpaque(s.host(up)) {
			return false, nil
		}
		if up == "." {
			break
		}
	}
	at, err := s.lower.at(dir)
	return at.kind() == unix.S_IFDIR, err
}

// unhide removes whiteouts from where nothing is below to be hidden.
func (s *settler) unhide() error {
	known := map[string]bool{}
	for _, p := range s.man.paths() {
		if s.man[p].Type != typeWhiteout {
			continue
		}
		dir := parentOf(p)
		merged, ok := known[dir]
		if !ok {
			var err error
			if merged, err = s.merged(dir); err != nil {
				return err
			}
			known[dir] = merged
		}
		if merged {
			continue
		}
		if err := os.Remove(s.host(p)); err != nil {
			return err
		}
		delete(s.man, p)
	}
	return nil
}

// relocate moves what the layer put below a path that is a symlink further down to where that symlink leads.
func (s *settler) relocate() error {
	for todo := sortedKeys(s.res.implied); len(todo) > 0; {
		p := todo[0]
		todo = todo[1:]
		if _, still := s.res.implied[p]; !still {
			continue
		}
		moved, err := s.relocateOne(p)
		if err != nil {
			return err
		}
		todo = append(moved, todo...) // names have changed: look at them afresh
	}
	return nil
}

// relocateOne moves what is below p, if need be, and returns the new names of implied directories.
func (s *settler) relocateOne(p string) ([]string, error) {
	at, err := s.below(p)
	if err != nil || at.kind() != unix.S_IFLNK {
		return nil, err
	}
	to, err := s.lower.resolve(p, true)
	if err != nil {
		return nil, fmt.Errorf("resolve %s below: %w", p, err)
	}
	if to.exists && to.kind() != unix.S_IFDIR {
		return nil, fmt.Errorf("%s leads to %s, which is not a directory: %w", p, to.path, unix.ENOTDIR)
	}
	if within(to.path, p) {
		return nil, fmt.Errorf("%s leads into itself: %w", p, unix.ELOOP)
	}
	if err := s.mkdirAll(to.path); err != nil {
		return nil, err
	}
	m := moves{}
	if err := s.merge(p, to.path, m); err != nil {
		return nil, err
	}
	delete(s.res.implied, p)
	s.seen = nil
	s.man.rename(m)
	renameKeys(s.res.links, m)
	for name, target := range s.res.links {
		s.res.links[name] = m.now(target)
	}
	return renameKeys(s.res.implied, m), nil
}

// merge moves all that is in the directory from into the directory to, and removes from. It notes what has a new name.
func (s *settler) merge(from, to string, m moves) error {
	names, err := os.ReadDir(s.host(from))
	if err != nil {
		return err
	}
	for _, n := range names {
		src, dst := join(from, n.Name()), join(to, n.Name())
		var st unix.Stat_t
		err := unix.Lstat(s.host(dst), &st)
		if err == nil && n.IsDir() && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if err := s.merge(src, dst, m); err != nil {
				return err
			}
			delete(s.res.implied, src)
			continue
		}
		if err == nil {
			if err := s.drop(dst); err != nil {
				return err
			}
		}
		if err := s.move(src, dst); err != nil {
			return err
		}
		m[src] = dst
	}
	if e := s.man[from]; e.Opaque {
		if err := s.makeOpaque(to); err != nil {
			return err
		}
	}
	delete(s.man, from)
	m[from] = to // for hard links, which are not there yet
	return os.Remove(s.host(from))
}

func (s *settler) move(from, to string) error {
	delete(s.res.links, to)
	if err := os.Rename(s.host(from), s.host(to)); err != nil {
		return err
	}
	sk, err := s.skeleton()
	if err != nil {
		return err
	}
	return sk.moved(from, to)
}

// drop makes the name p free for something else.
func (s *settler) drop(p string) error {
	if err := s.attic.take(s.host(p), p); err != nil {
		return err
	}
	s.replaced = true
	if s.man[p].Type != typeDir {
		delete(s.man, p)
		return nil
	}
	s.man.drop(p)
	dropWithin(s.res.implied, p)
	dropWithin(s.res.links, p)
	return nil
}

// dropWithin removes the keys that are p or below it.
func dropWithin[V any](m map[string]V, p string) {
	for k := range m {
		if within(k, p) {
			delete(m, k)
		}
	}
}

// reunite has further names of a file whose first name went to another file stand for themselves.
func (s *settler) reunite() error {
	if !s.replaced {
		return nil
	}
	return s.man.reunite(s.own)
}

// link makes the hard links whose target is further down: the target is copied up first, as a mounted overlay would.
func (s *settler) link() error {
	for _, name := range sortedKeys(s.res.links) {
		if err := s.linkChain(name); err != nil {
			return err
		}
	}
	return nil
}

// linkChain makes a hard link after the one that it names, when that one is still to be made.
func (s *settler) linkChain(name string) error {
	var chain []string
	seen := map[string]bool{}
	for target, waits := s.res.links[name]; waits; target, waits = s.res.links[name] {
		if seen[name] {
			return &HostileError{name, "is a hard link that leads back to itself"}
		}
		seen[name] = true
		chain = append(chain, name)
		name = target
	}
	for _, name := range slices.Backward(chain) {
		target := s.res.links[name]
		if err := s.linkOne(name, target); err != nil {
			return fmt.Errorf("hard link %s to %s: %w", name, target, err)
		}
		delete(s.res.links, name)
	}
	return nil
}

func (s *settler) linkOne(name, target string) error {
	from, err := s.both.resolve(target, false)
	if err != nil {
		return err
	}
	hidden := !from.exists
	if hidden { // removed by this very layer: what was there is meant
		if from, err = s.lower.resolve(target, false); err != nil {
			return err
		}
	}
	switch {
	case !from.exists:
		return &HostileError{name, fmt.Sprintf("is a hard link to %q, which is nowhere in the image", target)}
	case from.kind() == unix.S_IFDIR:
		return &HostileError{name, "is a hard link to a directory"}
	case from.path == name && !hidden:
		return &HostileError{name, "is a hard link to itself"}
	}
	if err := s.free(name); err != nil {
		return err
	}
	if hidden {
		return s.copyUp(from.host, name)
	}
	if from.host != s.host(from.path) {
		if err := s.mkdirAll(parentOf(from.path)); err != nil {
			return err
		}
		if err := s.copyUp(from.host, from.path); err != nil {
			return err
		}
	}
	if err := os.Link(s.host(from.path), s.host(name)); err != nil {
		return err
	}
	s.man[name] = entry{Path: name, Type: typeLink, Link: from.path}
	return nil
}

// free drops what relocate has put where a hard link is to be.
func (s *settler) free(name string) error {
	_, err := os.Lstat(s.host(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.drop(name)
}

func (s *settler) copyUp(host, p string) error {
	if err := copyNode(host, s.host(p)); err != nil {
		return err
	}
	e, err := observe(s.own, p)
	s.man[p] = e
	return err
}

// mkdirAll makes a directory of this layer and all above it that are missing, each to take after what is below.
func (s *settler) mkdirAll(p string) error {
	if p == "." {
		return nil
	}
	if err := s.mkdirAll(parentOf(p)); err != nil {
		return err
	}
	var st unix.Stat_t
	err := unix.Lstat(s.host(p), &st)
	detached := false
	if err == nil && isWhiteout(&st) {
		if err := os.Remove(s.host(p)); err != nil {
			return err
		}
		detached = true
	} else if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	} else if err == nil {
		return fmt.Errorf("%s: %w", p, unix.ENOTDIR)
	}
	if err := os.Mkdir(s.host(p), 0o755); err != nil {
		return err
	}
	if err := disinherit(s.host(p)); err != nil {
		return err
	}
	if err := os.Chmod(s.host(p), 0o755); err != nil {
		return err
	}
	s.man[p] = entry{Path: p, Type: typeDir, Mode: 0o755}
	s.res.implied[p] = detached
	s.seen = nil
	if detached {
		return s.makeOpaque(p)
	}
	return nil
}

func (s *settler) makeOpaque(p string) error {
	e := s.man[p]
	e.Opaque = true
	s.man[p] = e
	s.seen = nil
	return unix.Lsetxattr(s.host(p), "trusted.overlay.opaque", []byte("y"), 0)
}

// adopt gives the implied directories the owner, mode, xattrs and times of those they cover.
func (s *settler) adopt() error {
	for _, p := range sortedKeys(s.res.implied) {
		at, err := s.below(p)
		if err != nil {
			return err
		}
		if at.kind() != unix.S_IFDIR {
			continue
		}
		if err := copyMetadata(at.host, s.host(p), &at.stat); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		opaque := s.man[p].Opaque
		e, err := observe(s.own, p)
		if err != nil {
			return err
		}
		e.Opaque = opaque
		s.man[p] = e
	}
	return nil
}

// times sets the directories' times again, which the passes before changed.
func (s *settler) times() error {
	for _, p := range s.man.paths() {
		if e := s.man[p]; e.Type == typeDir {
			if err := setTimes(unix.AT_FDCWD, s.host(p), time.Unix(0, e.Mtime)); err != nil {
				return err
			}
		}
	}
	return nil
}

// below finds what the directory p of this layer covers; nothing when this layer cut itself off there.
func (s *settler) below(p string) (place, error) {
	if s.res.implied[p] {
		return place{}, nil
	}
	c, err := s.covered(p)
	return c.at, err
}

// covered looks p up from its parent, which it remembers: a path may have thousands of components.
func (s *settler) covered(p string) (covers, error) {
	if c, ok := s.seen[p]; ok {
		return c, nil
	}
	c, err := s.lookUp(p)
	if err != nil {
		return covers{}, err
	}
	if s.seen == nil {
		s.seen = map[string]covers{}
	}
	s.seen[p] = c
	return c, nil
}

func (s *settler) lookUp(p string) (c covers, err error) {
	if p == "." {
		c.dirs, err = s.lower.root()
		c.at = place{path: ".", exists: true, stat: unix.Stat_t{Mode: unix.S_IFDIR}}
		return c, err
	}
	up := parentOf(p)
	if s.man[up].Opaque {
		return covers{}, nil
	}
	above, err := s.covered(up)
	if err != nil || above.at.kind() != unix.S_IFDIR {
		return covers{}, err
	}
	c.at, c.dirs, err = above.dirs.child(path.Base(p))
	return c, err
}

func (s *settler) host(p string) string { return filepath.Join(s.own, p) }

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
