package layer

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Limits bound what one layer may become. Zero is no limit.
type Limits struct {
	Bytes   int64 // the sum of its files, holes included
	Entries int   // lines of the tar
}

// A LimitError says which bound a layer broke.
type LimitError struct{ What string }

func (e *LimitError) Error() string { return e.What }

// Unwrap returns the kind.
func (e *LimitError) Unwrap() error { return errdefs.ErrResourceExhausted }

// Result says what an unpacked layer needs from those below it, and what it takes of the disk.
type Result struct {
	Bytes, Inodes uint64
	// Opaque says that the layer hides everything below it.
	Opaque bool
	// Unsupported counts extended attributes that the file system does not keep.
	Unsupported int

	implied map[string]bool   // directories no entry describes; true: nothing below shows through
	links   map[string]string // hard links whose target was not in the layer
	hiding  map[string]bool   // directories with whiteouts in them
}

// Independent says that the layer is the same whatever is below it: Settle has nothing to do.
func (r *Result) Independent() bool {
	return len(r.implied) == 0 && len(r.links) == 0 && len(r.hiding) == 0
}

// Unpack writes the tar stream r into the existing directory dir as a layer. The stream is read to its end. On an error
// what is in dir is worthless, and the caller removes it.
func Unpack(ctx context.Context, r io.Reader, dir string, lim Limits) (*Result, error) {
	u, err := newUnpacker(dir, lim)
	if err != nil {
		return nil, fmt.Errorf("prepare layer directory: %w", err)
	}
	u.tar.r = r
	err = u.stream(ctx)
	if err == nil {
		err = u.finish()
	}
	u.closeParent()
	unix.Close(u.root)
	if cerr := errors.Join(u.man.close(), u.tar.sk.close()); err == nil {
		err = cerr
	}
	if err == nil && u.replaced {
		err = u.recount(dir)
	}
	giveBuffer(u.buf)
	if err != nil {
		return nil, err
	}
	res := u.res // a pointer into u would keep all that unpacking needed for as long as the result
	res.Bytes += kept(dir)
	return &res, nil
}

// dirState is what is kept of each directory until the end, when its times are set: whatever is written into a
// directory changes them.
type dirState struct {
	entry
	implied  bool     // no entry described it
	detached bool     // it replaced something: nothing below shows through
	inside   []string // directories and far links that were put into it
}

type unpacker struct {
	root     int // descriptor of fs
	man      *manifestWriter
	tar      *recorder
	attic    *attic
	lim      Limits
	entries  int
	left     int64 // bytes still allowed
	dirs     map[string]*dirState
	replaced bool // an entry replaced another: the manifest needs a second look
	parent   parentDir
	buf      []byte
	res      Result
}

func newUnpacker(dir string, lim Limits) (*unpacker, error) {
	fs := filepath.Join(dir, FS)
	if err := os.Mkdir(fs, 0o755); err != nil {
		return nil, err
	}
	if err := os.Chmod(fs, 0o755); err != nil {
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
	sk, err := createSkeleton(dir, lim.Bytes)
	if err != nil {
		unix.Close(root)
		return nil, errors.Join(err, man.close())
	}
	left := lim.Bytes
	if left <= 0 {
		left = 1<<63 - 1
	}
	return &unpacker{
		root: root, man: man, tar: &recorder{sk: sk}, attic: &attic{dir, func() (*skeletonWriter, error) { return sk, nil }, -1}, lim: lim, left: left, parent: parentDir{fd: -1}, buf: takeBuffer(),
		dirs: map[string]*dirState{".": {entry: entry{Path: ".", Type: typeDir, Mode: 0o755}, implied: true}},
		res:  Result{implied: map[string]bool{}, links: map[string]string{}, hiding: map[string]bool{}},
	}, nil
}

func (u *unpacker) stream(ctx context.Context) error {
	tr := tar.NewReader(u.tar)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read layer tar: %w", err)
		}
		if u.entries++; u.lim.Entries > 0 && u.entries > u.lim.Entries {
			return &LimitError{fmt.Sprintf("layer has more than %d entries", u.lim.Entries)}
		}
		if err := u.entry(ctx, h, tr); err != nil {
			return err
		}
	}
	// What follows the end mark counts for the digest.
	_, err := io.CopyBuffer(plainWriter{io.Discard}, u.tar, u.buf)
	return err
}

// entry writes one entry of the tar.
func (u *unpacker) entry(ctx context.Context, h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
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
		return u.describe(u.dirs["."], h, h.Name)
	}
	if err := u.openParent(parentOf(name)); err != nil {
		return wrapEntry(h.Name, err)
	}
	base := filepath.Base(name)
	if strings.HasPrefix(base, whiteoutPrefix) {
		return wrapEntry(h.Name, u.whiteout(h, base))
	}
	return wrapEntry(h.Name, u.create(ctx, h, base, r))
}

// wrapEntry names the entry, unless the error already does.
func wrapEntry(name string, err error) error {
	var hostile *HostileError
	var limit *LimitError
	if err == nil || errors.As(err, &hostile) || errors.As(err, &limit) {
		return err
	}
	return fmt.Errorf("unpack %q: %w", name, err)
}

const whiteoutPrefix = ".wh."

// whiteout hides what is below, never what this layer itself brings.
func (u *unpacker) whiteout(h *tar.Header, base string) error {
	dir := u.parent.name
	if base == ".wh..wh..opq" {
		return u.makeOpaque(u.dirs[dir])
	}
	if strings.HasPrefix(base, ".wh..wh.") {
		return nil // bookkeeping of aufs
	}
	target := strings.TrimPrefix(base, whiteoutPrefix)
	if target == "" || target == "." || target == ".." {
		return &HostileError{h.Name, "is a whiteout of no name"}
	}
	full := join(dir, target)
	if _, far := u.res.links[full]; far {
		return nil
	}
	err := unix.Mknodat(u.parent.fd, target, unix.S_IFCHR, 0)
	if errors.Is(err, unix.EEXIST) {
		if d := u.dirs[full]; d != nil {
			d.detached = true
			return u.makeOpaque(d)
		}
		return nil // a file of this layer hides it already
	}
	if err != nil {
		return err
	}
	u.res.Inodes++
	u.res.hiding[dir] = true
	return u.man.add(entry{Path: full, Type: typeWhiteout})
}

func (u *unpacker) makeOpaque(d *dirState) error {
	if d.Opaque {
		return nil
	}
	d.Opaque = true
	return u.setxattr(d.Path, "trusted.overlay.opaque", []byte("y"))
}

// create makes what the header describes as base in the open parent.
func (u *unpacker) create(ctx context.Context, h *tar.Header, base string, r io.Reader) error {
	full := join(u.parent.name, base)
	if len(u.res.links) > 0 {
		delete(u.res.links, full)
	}
	if h.Typeflag == tar.TypeDir {
		return u.directory(h, base, full)
	}
	e := describeEntry(h, full)
	put, err := u.maker(ctx, h, base, r, &e)
	if err != nil {
		return err
	}
	err = put()
	if errors.Is(err, unix.EEXIST) {
		if err = u.clear(base, full); err == nil {
			err = put()
		}
	}
	var far *farLinkError
	if errors.As(err, &far) {
		return u.linkLater(base, full, far.target)
	}
	if err != nil {
		return err
	}
	if e.Type != typeLink {
		u.res.Inodes++
		u.res.Bytes += blocks(e)
	}
	return u.man.add(e)
}

// linkLater leaves a hard link to Settle. Its name must be free until then.
func (u *unpacker) linkLater(base, full, target string) error {
	_, err := os.Lstat(procPath(u.parent.fd, base))
	if err == nil {
		err = u.clear(base, full)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	u.res.links[full] = target
	u.noteInside(u.parent.name, base)
	return nil
}

func (u *unpacker) noteInside(dir, base string) {
	if d := u.dirs[dir]; d != nil {
		d.inside = append(d.inside, base)
	}
}

// maker returns what makes the entry, safe to call again when its name was taken.
func (u *unpacker) maker(ctx context.Context, h *tar.Header, base string, r io.Reader, e *entry) (func() error, error) {
	fd := u.parent.fd
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		e.Type = typeFile
		return func() error { return u.file(ctx, h, base, r, e) }, nil
	case tar.TypeLink:
		target, err := inside(h.Linkname)
		if err != nil {
			return nil, &HostileError{h.Name, fmt.Sprintf("is a hard link to %q, which leads out of the layer", h.Linkname)}
		}
		e.Type = typeLink
		return func() error { return u.link(target, base, e) }, nil
	case tar.TypeSymlink:
		if h.Linkname == "" {
			return nil, &HostileError{h.Name, "is a symlink to nothing"}
		}
		e.Type, e.Link = typeSymlink, h.Linkname
		return u.node(base, h, e, func() error { return unix.Symlinkat(h.Linkname, fd, base) }), nil
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return u.device(h, base, e), nil
	}
	return nil, &HostileError{h.Name, fmt.Sprintf("has the unknown type %q", string(h.Typeflag))}
}

func (u *unpacker) device(h *tar.Header, base string, e *entry) func() error {
	kind := uint32(unix.S_IFIFO)
	e.Type = typeFifo
	switch h.Typeflag {
	case tar.TypeChar:
		kind, e.Type = unix.S_IFCHR, typeChar
	case tar.TypeBlock:
		kind, e.Type = unix.S_IFBLK, typeBlock
	}
	if e.Type != typeFifo {
		e.Dev = unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))
	}
	fd := u.parent.fd
	make := func() error { return unix.Mknodat(fd, base, kind|0o600, int(e.Dev)) }
	if e.Type == typeChar && e.Dev == 0 { // an overlay takes it for a whiteout, and so does everybody who packs one's upper directory
		*e = entry{Path: e.Path, Type: typeWhiteout}
		u.res.hiding[u.parent.name] = true
		return make
	}
	return u.node(base, h, e, make)
}

// node wraps the making of what has no content with the setting of its metadata.
func (u *unpacker) node(base string, h *tar.Header, e *entry, put func() error) func() error {
	return func() error {
		if err := put(); err != nil {
			return err
		}
		return u.dress(base, h, e)
	}
}

// file writes content and metadata of a regular file.
func (u *unpacker) file(ctx context.Context, h *tar.Header, base string, r io.Reader, e *entry) error {
	if u.left -= h.Size; u.left < 0 {
		return &LimitError{fmt.Sprintf("layer unpacks to more than %d bytes", u.lim.Bytes)}
	}
	fd, err := unix.Openat(u.parent.fd, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		if errors.Is(err, unix.EEXIST) {
			u.left += h.Size
		}
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	sparse := isSparse(h)
	if !sparse { // what a sparse file's tar holds is not what the file holds: the skeleton takes it as it is
		u.tar.begin()
	}
	sum, n, err := u.content(ctx, f, r, sparse)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && !sparse {
		err = u.tar.end(e.Path, n)
	}
	if err != nil {
		return err
	}
	e.Size, e.Hash = n, sum
	return u.dress(base, h, e)
}

// content copies r into f, leaving holes for zeros when the archive says that the file is sparse.
func (u *unpacker) content(ctx context.Context, f *os.File, r io.Reader, sparse bool) (string, int64, error) {
	hash, total := sha256.New(), int64(0)
	for {
		n, err := r.Read(u.buf)
		hash.Write(u.buf[:n])
		if n > 0 && !(sparse && allZero(u.buf[:n])) {
			if _, werr := f.WriteAt(u.buf[:n], total); werr != nil {
				return "", 0, werr
			}
		}
		total += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", 0, fmt.Errorf("read layer tar: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return "", 0, err
		}
	}
	if sparse {
		if err := f.Truncate(total); err != nil {
			return "", 0, err
		}
	}
	return hex.EncodeToString(hash.Sum(nil)), total, nil
}

// directory makes a directory or describes one that is there.
func (u *unpacker) directory(h *tar.Header, base, full string) error {
	d := u.dirs[full]
	if d == nil {
		made, err := u.mkdir(base, full)
		if err != nil {
			return err
		}
		d = made
	}
	return u.describe(d, h, h.Name)
}

// mkdir makes a directory. One that takes the place of something else is detached from what is below.
func (u *unpacker) mkdir(base, full string) (*dirState, error) {
	d := &dirState{entry: entry{Path: full, Type: typeDir, Mode: 0o755}, implied: true}
	err := unix.Mkdirat(u.parent.fd, base, 0o755)
	if errors.Is(err, unix.EEXIST) {
		if err = u.clear(base, full); err == nil {
			d.detached = true
			err = unix.Mkdirat(u.parent.fd, base, 0o755)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Fchmodat(u.parent.fd, base, 0o755, 0); err != nil {
		return nil, err
	}
	delete(u.res.links, full)
	u.dirs[full] = d
	u.noteInside(parentOf(full), base)
	u.res.Inodes++
	u.res.Bytes += 4096
	if d.detached {
		return d, u.makeOpaque(d)
	}
	return d, nil
}

// describe gives a directory what its entry says.
func (u *unpacker) describe(d *dirState, h *tar.Header, name string) error {
	opaque := d.Opaque
	d.entry = describeEntry(h, d.Path)
	d.Type, d.Opaque, d.implied = typeDir, opaque, false
	return wrapEntry(name, u.dressAt(u.root, d.Path, h, &d.entry))
}

// clear takes away what an earlier entry put at base. The root of a subtree takes all its notes along.
func (u *unpacker) clear(base, full string) error {
	u.replaced = true
	u.forget(full)
	if err := u.attic.take(procPath(u.parent.fd, base), full); err != nil {
		return err
	}
	return u.man.add(entry{Path: full, Type: typeGone})
}

// forget drops the notes of a directory and of what is in it.
func (u *unpacker) forget(full string) {
	d := u.dirs[full]
	if d == nil {
		return
	}
	delete(u.dirs, full)
	for _, base := range d.inside {
		delete(u.res.links, join(full, base))
		u.forget(join(full, base))
	}
}

// impliedRoot marks the tree of a layer that does not describe its root. Who mounts it takes the root from a layer below.
const impliedRoot = "trusted.berth.implied"

func (u *unpacker) markRoot(d *dirState) error {
	if !d.implied || d.Opaque {
		return nil
	}
	return u.setxattr(".", impliedRoot, []byte("y"))
}

// dropBookkeeping removes what aufs kept for itself at the root: the files of its layers were linked to it.
func (u *unpacker) dropBookkeeping() error {
	for p := range u.dirs {
		if !strings.HasPrefix(p, ".wh..wh.") || strings.Contains(p, "/") {
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

// finish sets what could not be set while entries were still coming, deepest first.
func (u *unpacker) finish() error {
	if err := u.dropBookkeeping(); err != nil {
		return err
	}
	names := make([]string, 0, len(u.dirs))
	for p := range u.dirs {
		names = append(names, p)
	}
	sort.Sort(sort.Reverse(sort.StringSlice(names)))
	for _, p := range names {
		d := u.dirs[p]
		if p == "." {
			u.res.Opaque = d.Opaque
			if err := u.markRoot(d); err != nil {
				return err
			}
		} else if d.implied {
			u.res.implied[p] = d.detached
		}
		if err := u.keepDefaultACL(d); err != nil {
			return wrapEntry(p, err)
		}
		if err := setTimes(u.root, p, time.Unix(0, d.Mtime)); err != nil {
			return wrapEntry(p, err)
		}
		if err := u.man.add(d.entry); err != nil {
			return err
		}
	}
	return nil
}
