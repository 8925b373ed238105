package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// Finalize finishes the layer in dir over the trees of the layers below, the topmost first, and closes them; res is
// what Unpack returned for it. It may be called once for a layer. After an error the caller removes dir. It returns
// soon after the end of ctx.
//
// Its cost grows with the implied directories, the directories that have whiteouts and the hard links to files below,
// not with all files: it looks at a file only to move it. It appends lines to the manifest, and reads the manifest only
// when directories have moved.
func Finalize(ctx context.Context, dir string, res *Result, lowers Trees) error {
	if res.Independent() {
		lowers.close()
		return nil
	}
	if err := FinalizeConfined(ctx, dir, res, lowers); err != nil {
		return err
	}
	granted, err := Grant(ctx, dir, Limits{Entries: math.MaxInt32})
	res.Marked = res.Marked || granted.Marked
	return err
}

// FinalizeConfined is Finalize for a process that may make no devices and set no trusted attributes. It lists what it
// could not do, and Grant does it. It closes the trees unless Kept is set.
func FinalizeConfined(ctx context.Context, dir string, res *Result, lowers Trees) error {
	s, err := newFinalizer(ctx, dir, res, lowers)
	if err != nil {
		return fmt.Errorf("finalize layer: %w", err)
	}
	passes := []func() error{s.relocate, s.link, s.closeTarSplit, s.finish, s.grants.close, s.record, s.reunite}
	for _, pass := range passes {
		if err = pass(); err != nil {
			break
		}
	}
	if err = errors.Join(err, s.close()); err != nil {
		return fmt.Errorf("finalize layer: %w", err)
	}
	res.Bytes += tarSplitBytes(dir) - s.tarSplitBefore
	res.Looks = s.lower.looks.budget.Used
	res.dirs, res.links, res.gone, res.Waits = nil, nil, nil, false
	return nil
}

type finalizer struct {
	ctx         context.Context
	dir         string
	own         int // descriptor of the layer's tree
	lower, both *view
	res         *Result
	dirs        *dirTree // of the layer as it is now
	before      *dirTree // with the paths of the manifest; nil until a directory moves
	moved       relocated
	links       map[nodeID]map[string]string
	more        *manifestWriter // lines to be added to the manifest
	old         *replacedFiles
	grants      *grantList
	sk          *tarSplitWriter // nil until a file has moved
	replaced    bool            // a file of the layer took the name of another file of the layer

	tarSplitBefore uint64
}

func newFinalizer(ctx context.Context, dir string, res *Result, lowers Trees) (_ *finalizer, err error) {
	s := &finalizer{
		ctx: ctx, dir: dir, own: -1, res: res, dirs: res.dirs, links: res.links, moved: newRelocated(),
		tarSplitBefore: tarSplitBytes(dir),
	}
	s.old = &replacedFiles{dir: dir, sk: s.tarSplit, memory: res.memory, used: res.replaced}
	s.grants = &grantList{dir: dir, memory: res.memory}
	looks := newQuota(limit.ImageLooks.At(lowers.Looks.Most).With(lowers.Looks.Used))
	s.lower = &view{
		ctx: ctx, roots: lowers.Roots, opaque: marksOf(lowers).isOpaque, kept: lowers.Kept, looks: looks,
	}
	if s.own, err = unix.Open(filepath.Join(dir, FS), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.more, err = createManifest(s.manifest() + ".more"); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.both = s.lower.with(s.own, s.hides)
	return s, nil
}

func (s *finalizer) close() error {
	err := errors.Join(s.closeTarSplit(), s.grants.close())
	if s.more != nil {
		err = errors.Join(err, s.more.close())
	}
	s.more = nil
	if s.both != nil {
		s.both.closeDeep()
	}
	if s.own >= 0 {
		unix.Close(s.own)
	}
	if s.lower != nil {
		s.lower.close()
	}
	return err
}

func (s *finalizer) manifest() string { return filepath.Join(s.dir, ManifestFile) }

// tarSplit opens the layer's tar-split metadata, to which records of moved files are appended.
func (s *finalizer) tarSplit() (_ *tarSplitWriter, err error) {
	if s.sk == nil {
		s.sk, err = appendTarSplit(s.dir)
	}
	return s.sk, err
}

func (s *finalizer) closeTarSplit() error {
	sk := s.sk
	s.sk = nil
	if sk == nil {
		return nil
	}
	return sk.close()
}

// note sets flags of a directory, and marks it and those above it, so that finish visits it.
func (s *finalizer) note(id nodeID, flags dirFlags) {
	s.dirs.at(id).flags |= flags
	for ; id != noNode && !s.dirs.at(id).is(dirMatters); id = s.dirs.node(id).parent {
		s.dirs.at(id).flags |= dirMatters
	}
}

// relocate finds out what the directories of the layer cover. Where an implied directory covers a symlink, it moves the
// files in it to the directory that the symlink leads to.
func (s *finalizer) relocate() error { return s.visit(rootNode, merged{}) }

// visit relocates a directory, and those in it. above is what its parent covers.
func (s *finalizer) visit(id nodeID, above merged) error {
	d := s.dirs.at(id)
	if !d.is(dirMatters) || d.is(dirSeen) {
		return nil
	}
	d.flags |= dirSeen
	if err := s.ctx.Err(); err != nil {
		return err
	}
	at, inside, err := s.covers(id, above)
	if err != nil {
		return err
	}
	if d.is(dirImplied) && at.kind() == unix.S_IFLNK {
		return s.relocateOne(id)
	}
	for _, c := range s.dirs.sorted(id) {
		if s.dirs.node(c).gone || s.dirs.node(c).parent != id {
			continue // it has moved away meanwhile
		}
		if err := s.visit(c, inside); err != nil {
			return err
		}
	}
	return nil
}

// covers returns what a directory of the layer covers in the layers below: nothing if it is detached. inside is the
// merged directory below, in which the directories in it are looked up.
func (s *finalizer) covers(id nodeID, above merged) (at place, inside merged, err error) {
	d := s.dirs.at(id)
	if id == rootNode {
		if inside, err = s.lower.root(); err != nil {
			return place{}, merged{}, err
		}
		at = rootPlace
		at.exists = len(inside.trees) > 0
	} else if at, inside, err = s.lower.child(above, string(s.dirs.nameOf(id))); err != nil {
		return place{}, merged{}, err
	}
	d.below = 0
	if d.is(dirDetached) {
		at = place{}
	}
	if at.kind() == unix.S_IFDIR {
		d.below = uint16(at.tree + 1)
	}
	if d.is(dirOpaque) || at.kind() != unix.S_IFDIR {
		inside = merged{}
	}
	return at, inside, nil
}

// coversOf is covers for a directory whose parents have not been looked up: it starts at the root.
func (s *finalizer) coversOf(id nodeID) (inside merged, err error) {
	if id != rootNode {
		above, err := s.coversOf(s.dirs.node(id).parent)
		if err != nil {
			return merged{}, err
		}
		_, inside, err = s.covers(id, above)
		return inside, err
	}
	_, inside, err = s.covers(id, merged{})
	return inside, err
}

// mkdirAll makes a directory of this layer and those above it that are missing. They are implied ones: each gets the
// metadata of the directory that it covers.
func (s *finalizer) mkdirAll(p string) (id nodeID, err error) {
	if p == "." {
		return rootNode, nil
	}
	_, inside, err := s.covers(rootNode, merged{})
	if err != nil {
		return 0, err
	}
	at := noHandle()
	defer at.close()
	for rest := p; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		c, ok := s.dirs.child(id, name)
		if !ok {
			if err := at.enter(s.own, s.dirs, id); err != nil {
				return 0, err
			}
			if c, err = s.mkdir(id, at.fd, name); err != nil {
				return 0, err
			}
		}
		id = c
		if _, inside, err = s.covers(id, inside); err != nil {
			return 0, err
		}
	}
	return id, nil
}

// mkdir makes a directory in another, which is open.
func (s *finalizer) mkdir(in nodeID, fd int, name string) (nodeID, error) {
	length := int(s.dirs.at(in).length) + 1 + len(name)
	if err := limit.LayerPath.Check(int64(length)); err != nil {
		return 0, err
	}
	if err := s.res.memory.take(nodeCost + int64(len(name))); err != nil {
		return 0, err
	}
	info := dirInfo{mode: 0o755, length: uint16(length), flags: dirImplied | dirSeen | dirMatters | dirChanged}
	var st unix.Stat_t
	err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && isWhiteout(&st) {
		info.flags |= dirDetached | dirOpaque
		s.res.Inodes--
		err = unix.Unlinkat(fd, name, 0)
	} else if err == nil {
		err = fmt.Errorf("%s: %w", begin(name), unix.ENOTDIR)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return 0, err
	}
	if err := unix.Mkdirat(fd, name, 0o755); err != nil {
		return 0, err
	}
	if err := disinherit(spot{fd, name}.host()); err != nil {
		return 0, err
	}
	if err := unix.Fchmodat(fd, name, 0o755, 0); err != nil {
		return 0, err
	}
	s.res.Inodes, s.res.Bytes = s.res.Inodes+1, s.res.Bytes+4096
	s.note(in, dirTouched)
	id := s.dirs.add(in, name)
	*s.dirs.at(id) = info
	if err := s.res.disk.Spend(inodeCost); err != nil {
		return 0, err
	}
	return id, s.res.bytes.take(inodeCost)
}

// finish gives each implied directory the owner, mode, xattrs and times of the directory that it covers, removes
// whiteouts that have nothing below to hide, and sets the times of directories whose content has changed.
func (s *finalizer) finish() error {
	cut := 0 // counts the opaque directories on the path of the walk
	w := &dirWalk{ctx: s.ctx, root: s.own, dirs: s.dirs}
	w.skip = func(id nodeID) bool { return !s.dirs.at(id).is(dirMatters) }
	before := func(id nodeID, fd int, base string) error {
		d := s.dirs.at(id)
		if cut > 0 {
			d.below = 0
		}
		if d.is(dirHiding) && (d.below == 0 || d.is(dirOpaque)) {
			if err := s.unhide(id, fd, base, w.path()); err != nil {
				return err
			}
		}
		if d.is(dirOpaque) {
			cut++
		}
		if d.is(dirImplied) && d.below > 0 && id != rootNode && !d.is(dirDetached) {
			return s.adopt(d, spot{fd, base}, w.path())
		}
		return nil
	}
	return w.run(before, func(id nodeID, fd int, base string) error {
		if s.dirs.at(id).is(dirOpaque) {
			cut--
		}
		if err := s.finishOne(id, spot{fd, base}, w.path()); err != nil {
			return fmt.Errorf("%s: %w", begin(w.path()), err)
		}
		return nil
	})
}

func (s *finalizer) finishOne(id nodeID, to spot, path string) error {
	d := s.dirs.at(id)
	if d.is(dirTouched | dirChanged) {
		if err := setTimes(to.fd, to.base, time.Unix(0, d.mtime)); err != nil {
			return err
		}
	}
	if !d.is(dirChanged) {
		return nil
	}
	if d.is(dirOpaque) {
		if err := s.grants.add(grant{Path: path, Kind: grantOpaque}); err != nil {
			return err
		}
	}
	attrs, err := xattrs(to.host())
	if err != nil {
		return err
	}
	return s.more.add(d.entry(path, attrs))
}

// hides reports whether a directory of this layer is opaque.
func (s *finalizer) hides(path string) bool {
	id, rest := s.dirs.find(path)
	return rest == "" && s.dirs.at(id).is(dirOpaque)
}

// adopt gives a directory the metadata of the one that it covers.
func (s *finalizer) adopt(d *dirInfo, to spot, path string) error {
	from, err := s.lower.spot(int(d.below)-1, parentOf(path), to.base)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(from.fd, from.base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	d.uid, d.gid, d.mode, d.mtime = st.Uid, st.Gid, uint16(st.Mode&0o7777), st.Mtim.Nano()
	d.flags |= dirChanged
	if err := copyMetadata(from, to, &st, granted(s.grants, path)); err != nil {
		return fmt.Errorf("%s: %w", begin(path), err)
	}
	return nil
}

// unhide removes the whiteouts of a directory that the overlay does not merge with one below. The overlay hides
// whiteouts only in merged directories; in others it lists them, as names that cannot be opened.
func (s *finalizer) unhide(id nodeID, fd int, base, path string) error {
	return eachName(s.ctx, fd, base, func(in int, name string) error {
		var st unix.Stat_t
		if err := unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if !isWhiteout(&st) {
			return nil
		}
		s.note(id, dirTouched)
		s.res.Inodes--
		if err := s.more.add(entry{Path: join(path, name), Type: typeGone}); err != nil {
			return err
		}
		return unix.Unlinkat(in, name, 0)
	})
}

// eachName calls do for each name in a directory. It reads some hundred names at a time, because there may be millions.
// do may remove or rename the file that it is called for.
func eachName(ctx context.Context, dirfd int, base string, do func(in int, name string) error) error {
	fd, err := unix.Openat(dirfd, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), base)
	defer d.Close()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		names, err := d.Readdirnames(256)
		for _, name := range names {
			if err := do(fd, name); err != nil {
				return err
			}
		}
		if len(names) == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		}
	}
}

// reunite calls the function of that name when a file of the layer has replaced another.
func (s *finalizer) reunite() error {
	if !s.replaced {
		return nil
	}
	return reunite(s.ctx, s.dir, newPathTree[int64]())
}
