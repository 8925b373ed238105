package layer

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/diskspace"
	"berth/internal/fail/mark"
	"berth/internal/limit"
)

// Result is the outcome of unpacking a layer: the space it takes on the disk, and what Finalize needs.
type Result struct {
	Bytes, Inodes uint64
	// Opaque reports whether the layer hides everything below it.
	Opaque bool
	// Marked reports whether a directory of the layer has the overlay's opaque mark.
	Marked bool
	// Unsupported counts extended attributes that the file system does not support.
	Unsupported int
	// Looks is how many look-ups the layers of the image have taken when this one is finalized.
	Looks int64

	// Waits reports whether Finalize has something to do.
	Waits bool

	// The rest is for Finalize. All of it is charged to Limits.Memory.
	dirs     *dirTree
	links    map[nodeID]map[string]string // targets of hard links that are not in the layer, by directory and name
	gone     *goneTree                    // names that the layer used twice
	replaced int                          // counts the replaced files that are kept
	memory   *quota
	bytes    *quota
	disk     *diskspace.Gauge // of the file system that the layer is written to
}

// toMakeRoom is the remedy that errors name when a file system has too little room for a layer.
const toMakeRoom = "remove images"

// Independent reports whether the layer is the same whatever is below it, so that Finalize has nothing to do.
func (r *Result) Independent() bool { return !r.Waits }

// Unpack writes the tar stream r into the existing directory dir as a layer. It reads the stream to its end. After an
// error the caller removes dir. Unpack returns soon after the end of ctx: it checks ctx before each read of the stream,
// and during long work for a single entry.
func Unpack(ctx context.Context, r io.Reader, dir string, lim Limits) (*Result, error) {
	res, err := UnpackConfined(ctx, r, dir, lim)
	if err != nil {
		return nil, err
	}
	granted, err := Grant(ctx, dir, lim)
	res.Unsupported, res.Marked = res.Unsupported+granted.Unsupported, granted.Marked
	return res, err
}

// UnpackConfined is Unpack for a process that may make no devices and set no trusted attributes. It lists what it could
// not do, and Grant does it.
func UnpackConfined(ctx context.Context, r io.Reader, dir string, lim Limits) (*Result, error) {
	u, err := newUnpacker(ctx, dir, lim)
	if err != nil {
		return nil, fmt.Errorf("prepare layer directory: %w", err)
	}
	u.tar.r = r
	err = u.stream()
	if err == nil {
		err = u.finish()
	}
	u.res.replaced = u.old.used
	u.parent.close()
	unix.Close(u.root)
	if cerr := errors.Join(u.man.close(), u.tar.sk.close(), u.grants.close()); err == nil {
		err = cerr
	}
	if err == nil && u.replaced {
		err = errors.Join(u.grants.drop(ctx, u.res.gone), reunite(ctx, dir, u.res.gone))
	}
	giveBuffer(u.buf)
	if err != nil {
		return nil, err
	}
	res := u.res // a copy, because a pointer into u would keep all of u in memory as long as the result
	res.Bytes += tarSplitBytes(dir)
	if !res.Waits {
		res.dirs, res.links, res.gone = nil, nil, nil
	}
	return &res, nil
}

type unpacker struct {
	ctx      context.Context
	root     int // descriptor of the layer's tree
	man      *manifestWriter
	tar      *recorder
	old      *replacedFiles
	grants   *grantList
	entries  *quota
	dirs     *dirTree                     // the directories of the layer so far
	xattrs   map[nodeID]map[string][]byte // of directories
	replaced bool                         // an entry has replaced another: openParent resolves every path anew
	parent   parentDir
	defaults defaults
	hash     hash.Hash // is used for one file after the other
	buf      []byte
	res      Result
}

func newUnpacker(ctx context.Context, dir string, lim Limits) (*unpacker, error) {
	fs := filepath.Join(dir, FS)
	if err := os.Mkdir(fs, 0o755); err != nil {
		return nil, err
	}
	given, err := learnDefaults(fs)
	if err != nil {
		return nil, err
	}
	root, err := unix.Open(fs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	man, err := createManifest(filepath.Join(dir, ManifestFile))
	if err != nil {
		unix.Close(root)
		return nil, err
	}
	sk, err := createTarSplit(dir, lim.Bytes)
	if err != nil {
		unix.Close(root)
		return nil, errors.Join(err, man.close())
	}
	disk := &diskspace.Gauge{Floor: lim.Floor, Dir: dir, Remedy: toMakeRoom}
	u := &unpacker{
		ctx: ctx, root: root, man: man, tar: &recorder{ctx: ctx, sk: sk, disk: disk},
		parent:   parentDir{dirHandle: noHandle()},
		defaults: given,
		hash:     sha256.New(), buf: takeBuffer(),
		entries: newQuota(limit.LayerEntries.At(int64(lim.Entries))),
		dirs:    newPathTree[dirInfo](), xattrs: map[nodeID]map[string][]byte{},
		res: Result{
			links: map[nodeID]map[string]string{}, gone: newPathTree[int64](),
			memory: newQuota(limit.LayerMemory.At(lim.Memory)),
			bytes:  newQuota(limit.LayerBytes.At(lim.Bytes)),
			disk:   disk,
		},
	}
	u.res.dirs = u.dirs
	*u.dirs.at(rootNode) = dirInfo{mode: 0o755, flags: dirImplied}
	u.grants = &grantList{dir: dir, memory: u.res.memory}
	u.old = &replacedFiles{dir: dir, sk: func() (*tarSplitWriter, error) { return sk, nil }, memory: u.res.memory}
	return u, nil
}

func (u *unpacker) stream() error {
	tr := tar.NewReader(u.tar)
	for {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read layer tar: %w", err)
		}
		if err := u.entries.take(1); err != nil {
			return err
		}
		if err := u.entry(h, tr); err != nil {
			return err
		}
	}
	// The bytes after the end mark are read because the digest of the stream covers them.
	_, err := io.CopyBuffer(plainWriter{io.Discard}, u.tar, u.buf)
	return err
}

// entry makes what one entry of the tar describes.
func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if err := checkSizes(h); err != nil {
		return err
	}
	name, err := inside(h.Name)
	if err != nil {
		return err
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= 1<<32-1 || int64(h.Gid) >= 1<<32-1 {
		return &HostileError{h.Name, fmt.Sprintf("has the impossible owner %d:%d", h.Uid, h.Gid)}
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return &HostileError{h.Name, "replaces the root of the layer by something that is no directory"}
		}
		return wrapEntry(h.Name, u.describe(rootNode, target{u.root, "."}, born{}, h))
	}
	if err := u.openParent(parentOf(name)); err != nil {
		return wrapEntry(h.Name, err)
	}
	base := filepath.Base(name)
	if strings.HasPrefix(base, whiteoutPrefix) {
		return wrapEntry(h.Name, u.whiteout(h, base))
	}
	return wrapEntry(h.Name, u.create(h, base, r))
}

// checkSizes refuses names and attributes that exceed the kernel's limits, before they are kept in memory.
func checkSizes(h *tar.Header) error {
	for _, text := range []string{h.Name, h.Linkname} {
		if err := limit.EntryName.Check(int64(len(text))); err != nil {
			return fmt.Errorf("layer entry %q: %w", begin(h.Name), err)
		}
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, paxXattr)
		if !ok {
			continue
		}
		if err := limit.LayerXattr.Check(int64(len(value))); err != nil {
			return fmt.Errorf("layer entry %q: %s: %w", begin(h.Name), begin(name), err)
		}
	}
	return nil
}

// begin shortens a name for a message.
func begin(name string) string {
	if len(name) <= 200 {
		return name
	}
	return name[:200] + "…"
}

// wrapEntry adds the name of the entry to an error, unless the error has it already.
func wrapEntry(name string, err error) error {
	if err == nil || mark.As[*HostileError](err) || mark.As[*limit.Error](err) {
		return err
	}
	return fmt.Errorf("unpack %q: %w", begin(name), err)
}

const whiteoutPrefix = ".wh."

// whiteout makes a whiteout. It hides a file of the layers below; files of this layer stay, before or after it in the
// tar.
func (u *unpacker) whiteout(h *tar.Header, base string) error {
	if base == ".wh..wh..opq" {
		u.makeOpaque(u.parent.id)
		return nil
	}
	if strings.HasPrefix(base, ".wh..wh.") {
		return nil // aufs's own bookkeeping
	}
	target := strings.TrimPrefix(base, whiteoutPrefix)
	if target == "" || target == "." || target == ".." {
		return &HostileError{h.Name, "is a whiteout of no name"}
	}
	if _, far := u.res.links[u.parent.id][target]; far {
		return nil
	}
	err := unix.Mknodat(u.parent.fd, target, unix.S_IFCHR, 0)
	if errors.Is(err, unix.EEXIST) {
		if id, ok := u.dirs.child(u.parent.id, target); ok {
			u.dirs.at(id).flags |= dirDetached
			u.makeOpaque(id)
		}
		return nil // the name is taken by a file of this layer, which hides the one below already
	}
	if err != nil {
		return err
	}
	if err := u.countInode(0); err != nil {
		return err
	}
	u.dirs.at(u.parent.id).flags |= dirHiding
	return u.man.add(entry{Path: join(u.parent.name, target), Type: typeWhiteout})
}

// countInode charges a file of the given size, and its inode.
func (u *unpacker) countInode(size int64) error {
	u.res.Inodes++
	if err := u.res.disk.Spend(inodeCost); err != nil {
		return err
	}
	return u.res.bytes.take(size + inodeCost)
}

// clear removes what an earlier entry made at base: a directory with everything in it.
func (u *unpacker) clear(base, full string) error {
	u.replaced = true
	if id, ok := u.dirs.child(u.parent.id, base); ok {
		u.dirs.remove(id)
	}
	freed, err := u.old.take(u.parent.fd, base, full)
	if err != nil {
		return err
	}
	u.res.Inodes -= freed.inodes
	u.res.Bytes -= freed.bytes
	if err := noteGone(u.res.gone, full, u.man.lines+1, u.res.memory); err != nil {
		return err
	}
	return u.man.add(entry{Path: full, Type: typeGone})
}
