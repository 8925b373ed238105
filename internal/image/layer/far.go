package layer

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"golang.org/x/sys/unix"
)

// link makes the hard links whose target is in a layer below. It first copies the target up, as a mounted overlay
// would.
func (s *finalizer) link() error {
	waiting := map[string]string{}
	for in, links := range s.links {
		up, ok := s.dirs.path(in)
		if !ok {
			continue
		}
		for base, target := range links {
			waiting[join(up, base)] = s.now(target)
		}
	}
	for _, name := range sortedKeys(waiting) {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		if err := s.linkChain(waiting, name); err != nil {
			return err
		}
	}
	return nil
}

// linkChain makes a hard link. If its target is itself a link that waits, it makes that one first.
func (s *finalizer) linkChain(waiting map[string]string, name string) error {
	var chain []string
	seen := map[string]bool{}
	for target, waits := waiting[name]; waits; target, waits = waiting[name] {
		if seen[name] {
			return &HostileError{name, "is a hard link that leads back to itself"}
		}
		seen[name] = true
		chain = append(chain, name)
		name = target
	}
	for _, name := range slices.Backward(chain) {
		target := waiting[name]
		if err := s.linkOne(name, target); err != nil {
			return fmt.Errorf("hard link %s to %s: %w", begin(name), begin(target), err)
		}
		delete(waiting, name)
	}
	return nil
}

func (s *finalizer) linkOne(name, target string) error {
	if _, rest := s.dirs.find(parentOf(name)); rest != "" {
		return nil // another link took the place of a directory that this one was in
	}
	from, err := s.both.resolve(target, false)
	if err != nil {
		return err
	}
	hidden, tree := !from.exists, from.tree-1 // tree counts the layers below; -1 is this layer
	if hidden {                               // this layer removed the target, so the link is to the file below
		if from, err = s.lower.resolve(target, false); err != nil {
			return err
		}
		tree = from.tree
	}
	switch {
	case !from.exists:
		return &HostileError{name, fmt.Sprintf("is a hard link to %q, which is nowhere in the image", begin(target))}
	case from.kind() == unix.S_IFDIR:
		return &HostileError{name, "is a hard link to a directory"}
	case from.path == name && !hidden:
		return &HostileError{name, "is a hard link to itself"}
	}
	if err := s.free(name); err != nil {
		return err
	}
	if hidden {
		return s.copyUp(from, tree, name)
	}
	if tree >= 0 {
		if _, err := s.mkdirAll(parentOf(from.path)); err != nil {
			return err
		}
		if err := s.copyUp(from, tree, from.path); err != nil {
			return err
		}
	}
	if err := unix.Linkat(s.own, from.path, s.own, name, 0); err != nil {
		return err
	}
	if err := s.grants.linked(name, from.path, 0, s.res.gone); err != nil {
		return err
	}
	s.noteIn(name)
	return s.more.add(entry{Path: name, Type: typeLink, Link: from.path})
}

// noteIn notes that the directory of a path has changed.
func (s *finalizer) noteIn(p string) {
	id, _ := s.dirs.find(parentOf(p))
	s.note(id, dirTouched)
}

// free removes what relocate has moved to the name of a hard link that is still to be made.
func (s *finalizer) free(name string) error {
	at, err := openSpot(s.own, name)
	if err != nil {
		return err
	}
	defer at.close()
	var st unix.Stat_t
	err = unix.Fstatat(at.fd, at.base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	in, _ := s.dirs.find(parentOf(name))
	if err := s.more.add(entry{Path: name, Type: typeGone}); err != nil {
		return err
	}
	return s.drop(in, at, name, &st)
}

// copyUp copies a file of a tree below to a path of the layer.
func (s *finalizer) copyUp(what place, tree int, to string) error {
	if err := s.res.bytes.take(what.stat.Size + inodeCost); err != nil {
		return err
	}
	if err := s.res.disk.Spend(what.stat.Size + inodeCost); err != nil {
		return err
	}
	from, err := openSpot(s.lower.roots[tree], what.path)
	if err != nil {
		return err
	}
	defer from.close()
	at, err := openSpot(s.own, to)
	if err != nil {
		return err
	}
	defer at.close()
	e, err := copyNode(s.ctx, from, at, to, s.grants)
	if err != nil {
		return err
	}
	e.Path = to
	s.res.Inodes, s.res.Bytes = s.res.Inodes+1, s.res.Bytes+blocks(e)
	s.noteIn(to)
	return s.more.add(e)
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
