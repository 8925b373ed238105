// Package rootfs makes the root of a container out of the layers of its image, and opens things in it safely.
//
// A root is an overlay mount of layer directories with an upper directory of its own. Everything is named by the paths
// the caller gives, so an undo is computed from them: each thing made here has an unmake that succeeds when nothing is
// there, and Sweep removes what no record owns. Removal never crosses a mount: what is mounted is the data of a user.
//
// A container may have put anything into its root. So nothing there is opened by a string path: links and .. are
// resolved by the kernel with the root as the top, only regular files are opened, and reads are bounded.
package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
)

// Options is what a root is made of.
type Options struct {
	Lower    []string // layer directories, the topmost first
	ReadOnly bool     // no upper directory: for a volume that is an image
	Label    string   // SELinux label of every file; empty keeps what the files have
	IDs      IDMap    // by which the ids of the layers are shown, and those of what is written are kept

	synced bool // see despiteErrors
}

// IDMap is a user namespace by which ids of files are mapped: what belongs to id 0 is shown as its root's. No file is
// changed for it.
type IDMap struct {
	UserNS   string // its file; "" is no mapping
	UID, GID uint32 // of its root, on the host
}

// Prepare mounts the layers at mountpoint, with dir/upper over them and dir/work beside it. It makes the directories
// that are missing. When something is mounted there already, it is taken to be this root and nothing is done: the name
// of a mount point belongs to one container for ever. Unmount and Remove(dir) are its undo.
func Prepare(dir, mountpoint string, o Options) error {
	if err := prepare(dir, mountpoint, o); err != nil {
		return fmt.Errorf("prepare root %s: %w", mountpoint, err)
	}
	return nil
}

func prepare(dir, mountpoint string, o Options) error {
	if len(o.Lower) == 0 {
		return fail.New(errdefs.ErrInvalidArgument, "the image has no layers, so nothing could be its root: name another "+
			"image, or build this one with a layer")
	}
	if err := os.MkdirAll(mountpoint, 0o755); err != nil {
		return err
	}
	if mounted, err := isMount(mountpoint); err != nil || mounted {
		return err
	}
	for _, l := range o.Lower {
		if !filepath.IsAbs(l) {
			return fmt.Errorf("layer %q: its path must be absolute", l)
		}
	}
	if o.ReadOnly && len(o.Lower) == 1 && o.Label == "" {
		if o.IDs.UserNS != "" {
			return Stage(context.Background(), o.Lower[0], mountpoint, Staging{IDs: o.IDs, ReadOnly: true})
		}
		return bindReadOnly(o.Lower[0], mountpoint)
	}
	if err := makeDirs(dir, o); err != nil {
		return err
	}
	if o.ReadOnly && rootIsImplied(o.Lower[0]) && len(o.Lower) < MaxLayers { // or the root is as the topmost layer has it
		o.Lower = append([]string{filepath.Join(dir, "upper")}, o.Lower...)
	}
	if o.ReadOnly && len(o.Lower) == 1 { // only an overlay can show files by another label, and it needs two layers
		none := filepath.Join(dir, "none")
		if err := os.MkdirAll(none, 0o755); err != nil {
			return err
		}
		o.Lower = []string{o.Lower[0], none}
	}
	return despiteErrors(dir, o, func(o Options) error {
		switch {
		case o.IDs.UserNS != "":
			return mountMapped(dir, mountpoint, o)
		case oneByOne():
			return mountNew(dir, mountpoint, o)
		}
		return mountOld(dir, mountpoint, o, inDir)
	})
}

// ImpliedRoot is the extended attribute of a layer directory that says nothing about the root of the image: the mode
// and the owner of the root are those of a layer below.
const ImpliedRoot = "trusted.berth.implied"

func rootIsImplied(lower string) bool {
	n, err := unix.Lgetxattr(lower, ImpliedRoot, nil)
	return err == nil && n >= 0
}

// rootOf finds the layer whose root is that of the image.
func rootOf(lower []string) string {
	for _, l := range lower {
		if !rootIsImplied(l) {
			return l
		}
	}
	return lower[0]
}

// makeDirs makes upper and work. The root of an overlay has the mode and owner of its upper directory, so that takes
// them from the layers below before it gets its name: a crash between leaves nothing half made. Without an upper
// directory to write to there is one only to give the root what the topmost layer does not know.
func makeDirs(dir string, o Options) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if o.ReadOnly && !rootIsImplied(o.Lower[0]) {
		return nil
	}
	if err := os.Mkdir(filepath.Join(dir, "work"), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := forgetUnsynced(dir); err != nil {
		return err
	}
	upper := filepath.Join(dir, "upper")
	if _, err := os.Lstat(upper); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var st unix.Stat_t
	from := rootOf(o.Lower)
	if err := unix.Stat(from, &st); err != nil {
		return &os.PathError{Op: "stat layer", Path: from, Err: err}
	}
	fresh := filepath.Join(dir, "upper.new")
	if err := os.Mkdir(fresh, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chown(fresh, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := unix.Chmod(fresh, st.Mode&0o7777); err != nil {
		return &os.PathError{Op: "chmod", Path: fresh, Err: err}
	}
	return os.Rename(fresh, upper)
}

// Unmount undoes a mount at mountpoint, whatever it is; nil when there is none. A mount that is still in use (a shell
// that stands in it) is detached: it is gone from the tree at once, and from the kernel when its last user is, so one
// forgotten shell never keeps a pod from going. So is one whose file system cannot say whether it is mounted there: its
// server is gone, or it has shut down. The directory stays.
func Unmount(mountpoint string) error {
	const most = 16 // mounts can be stacked; this many only by mistake
	for range most {
		mounted, unknown := isMount(mountpoint)
		if unknown == nil && !mounted {
			return nil
		}
		err := unix.Unmount(mountpoint, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(mountpoint, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", mountpoint, err)
		}
		if err != nil && unknown != nil {
			return fmt.Errorf("unmount: %w", unknown)
		}
	}
	return fmt.Errorf("unmount %s: there are still mounts after taking %d away", mountpoint, most)
}

// isMount reports whether path itself is where something is mounted. Nothing there is no mount. The server of a network
// file system is not asked.
func isMount(path string) (bool, error) {
	var st unix.Statx_t
	const how = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	err := unix.Statx(unix.AT_FDCWD, path, how, 0, &st)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return false, nil
	case err != nil:
		return false, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// Tmpfs is a file system in memory.
type Tmpfs struct {
	Size     int64 // bytes; 0 is the kernel's default, half of the memory
	Mode     uint32
	UID, GID uint32
	Label    string // SELinux label of every file; empty is as the policy has it
}

// MakeShm mounts a pod's /dev/shm at path, with this owner and, unless it is empty, this SELinux label; UnmakeTmpfs
// takes it away.
func MakeShm(path string, size int64, uid, gid uint32, label string) error {
	return MakeTmpfs(path, Tmpfs{Size: size, Mode: 0o1777, UID: uid, GID: gid, Label: label})
}

// MakeTmpfs mounts a new tmpfs at path, which it makes, without programs, devices or setuid bits. When something is
// mounted there already, nothing is done.
func MakeTmpfs(path string, o Tmpfs) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("make tmpfs: %w", err)
	}
	if mounted, err := isMount(path); err != nil || mounted {
		return err
	}
	data := fmt.Sprintf("mode=%o,uid=%d,gid=%d", o.Mode, o.UID, o.GID)
	if o.Size > 0 {
		data += fmt.Sprintf(",size=%d", o.Size)
	}
	if o.Label != "" {
		data += fmt.Sprintf(",context=%q", o.Label)
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, data); err != nil {
		return fmt.Errorf("mount tmpfs at %s (%s): %w", path, data, err)
	}
	return nil
}

// UnmakeTmpfs takes the tmpfs at path away, and the directory; nil when there is neither.
func UnmakeTmpfs(path string) error {
	if err := Unmount(path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove tmpfs mount point: %w", err)
	}
	return nil
}
