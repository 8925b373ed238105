package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// Grant does what the list of grants in dir asks for, which UnpackConfined or FinalizeConfined wrote, and removes the
// list. It trusts the list no more than the layer itself: a path must stay beneath the layer's tree and lead through no
// symlink, a device replaces a socket only, and only attributes that an image may have are set.
func Grant(ctx context.Context, dir string, lim Limits) (Granted, error) {
	name := filepath.Join(dir, GrantsFile)
	if _, err := os.Lstat(name); errors.Is(err, os.ErrNotExist) {
		return Granted{}, nil
	}
	root, err := unix.Open(filepath.Join(dir, FS), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Granted{}, fmt.Errorf("grant: %w", err)
	}
	defer unix.Close(root)
	g := &granter{root: root, left: newQuota(limit.LayerGrants.At(grantsOf(lim)))}
	if err := eachGrant(ctx, name, g.apply); err != nil {
		return Granted{}, fmt.Errorf("grant: %w", err)
	}
	return g.granted, os.Remove(name)
}

// Granted is the outcome of Grant.
type Granted struct {
	Unsupported int  // counts attributes that the file system does not support
	Marked      bool // a directory got the overlay's opaque mark
}

// grantsOf is the number of lines that a list may have. Eight for each entry of the tar are enough for its attributes,
// and for those of the files that Finalize copies.
func grantsOf(lim Limits) int64 { return int64(lim.Entries) * 8 }

// granter works through a list of grants.
type granter struct {
	root    int
	left    *quota
	granted Granted
}

func (g *granter) apply(x grant) error {
	if err := g.left.take(1); err != nil {
		return err
	}
	if p, err := inside(x.Path); err != nil || p != x.Path {
		return &HostileError{x.Path, "is no path of a layer, but on the list of what it is to be granted"}
	}
	at, err := openSpot(g.root, x.Path)
	if err != nil {
		return wrapEntry(x.Path, err)
	}
	defer at.close()
	switch x.Kind {
	case grantOpaque:
		g.granted.Marked = true
		err = markDir(at, opaqueXattr)
	case grantImplied:
		err = markDir(spot{g.root, "."}, impliedRoot)
	case grantXattr:
		err = g.xattr(at, x)
	case typeChar, typeBlock:
		err = g.device(at, x)
	default:
		err = &HostileError{x.Path, fmt.Sprintf("is to be granted the unknown %q", begin(x.Kind))}
	}
	return wrapEntry(x.Path, err)
}

// markDir sets an attribute of a directory to "y", as the overlay's marks have it.
func markDir(at spot, name string) error {
	fd, err := openOwnDir(at.fd, at.base)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fsetxattr(fd, name, []byte("y"), 0)
}

func openOwnDir(fd int, base string) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: beneath}
	return unix.Openat2(fd, base, how)
}

// xattr sets an attribute that needs CAP_SYS_ADMIN, without following a symlink.
func (g *granter) xattr(at spot, x grant) error {
	if !strings.HasPrefix(x.Name, "security.") {
		return &HostileError{x.Path, fmt.Sprintf("is to be granted the attribute %q", begin(x.Name))}
	}
	if err := limit.LayerXattr.Check(int64(len(x.Value))); err != nil {
		return err
	}
	err := setXattr(at.host(), x.Name, x.Value)
	if unkept(err, "") {
		g.granted.Unsupported++
		return nil
	}
	return err
}

// device replaces a socket, the placeholder, by the device, which gets the socket's owner, mode, attributes and times.
// The times of the directory are restored afterwards. A further name of a device becomes a hard link to the first one.
func (g *granter) device(at spot, x grant) error {
	var st, up unix.Stat_t
	if err := unix.Fstatat(at.fd, at.base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return &HostileError{x.Path, "is to become a device, and is not what holds the place of one"}
	}
	if err := unix.Fstat(at.fd, &up); err != nil {
		return err
	}
	if err := g.replace(at, x, &st); err != nil {
		return err
	}
	return unix.UtimesNanoAt(at.fd, ".", []unix.Timespec{up.Atim, up.Mtim}, 0)
}

func (g *granter) replace(at spot, x grant, st *unix.Stat_t) error {
	made := spot{at.fd, grantTemp}
	if err := g.make(made, x); err != nil {
		return err
	}
	if x.First == "" {
		if err := copyMetadata(at, made, st, nil); err != nil {
			return errors.Join(err, unix.Unlinkat(made.fd, made.base, 0))
		}
	}
	return unix.Renameat(made.fd, made.base, at.fd, at.base)
}

// grantTemp is the temporary name of a new device. No file of a layer has it, because it has the prefix of whiteouts.
const grantTemp = ".wh..wh.berth-device"

func (g *granter) make(made spot, x grant) error {
	if x.First != "" {
		first, err := openSpot(g.root, x.First)
		if err != nil {
			return err
		}
		defer first.close()
		if !isDevice(first, x) {
			return &HostileError{x.Path, "is to become a further name of a device that is not there"}
		}
		return unix.Linkat(first.fd, first.base, made.fd, made.base, 0)
	}
	if x.Dev == 0 && x.Kind == typeChar {
		return &HostileError{x.Path, "is to be granted a whiteout, which needs no grant"}
	}
	kind := uint32(unix.S_IFCHR)
	if x.Kind == typeBlock {
		kind = unix.S_IFBLK
	}
	return unix.Mknodat(made.fd, made.base, kind|0o600, int(x.Dev))
}

func isDevice(at spot, x grant) bool {
	var st unix.Stat_t
	err := unix.Fstatat(at.fd, at.base, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && typeOf(&st) == x.Kind && st.Rdev == x.Dev
}
