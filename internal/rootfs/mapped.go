package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/thread"
)

// mountMapped mounts an overlay whose layers are all id-mapped: those below, and the writable one, whose files so keep
// the ids that the container sees. The overlay itself cannot be mapped, and its layers have to be mounts somewhere
// while it is made. So they are mounted in a mount namespace that only one thread has, and that is gone, with all that
// is mounted in it, when the thread is: a kill at any moment leaves nothing of it.
func mountMapped(dir, mountpoint string, o Options) error {
	mount, err := makeMapped(dir, mountpoint, o)
	if err != nil {
		return err
	}
	defer unix.Close(mount)
	return attach(mount, mountpoint)
}

// makeMapped returns the descriptor of the overlay, which is nowhere yet. scratch is any directory.
func makeMapped(dir, scratch string, o Options) (int, error) {
	userns, err := os.Open(o.IDs.UserNS)
	if err != nil {
		return -1, fmt.Errorf("id-mapped root: %w", err)
	}
	defer userns.Close()
	mount := -1
	err = inOwnMounts(scratch, func() error {
		mount, err = assemble(dir, scratch, o, int(userns.Fd()))
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("id-mapped root: %w", err)
	}
	return mount, nil
}

// inOwnMounts runs f on a thread of its own that has its own mount namespace, in which there is an empty file system at
// scratch.
func inOwnMounts(scratch string, f func() error) error {
	return thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare the mounts: %w", err)
		}
		// What is mounted here is nobody else's, and what others unmount meanwhile is not kept here.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fmt.Errorf("keep the mounts from the others: %w", err)
		}
		if err := unix.Mount("scratch", scratch, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOEXEC,
			"mode=700"); err != nil {
			return fmt.Errorf("mount scratch space at %s: %w", scratch, err)
		}
		return f()
	})
}

// assemble mounts the layers below scratch, and returns the descriptor of an overlay of them. The overlay uses its
// writable layer as the user who mounts it, so the layer's mapping must have that user.
func assemble(dir, scratch string, o Options, userns int) (int, error) {
	mapped := func(name, source string) (string, error) {
		at := filepath.Join(scratch, name)
		if err := os.Mkdir(at, 0o700); err != nil {
			return at, err
		}
		return at, placeMapped(source, at, userns)
	}
	lower := o.Lower
	o.Lower = nil
	for i, l := range lower {
		at, err := mapped(strconv.Itoa(i), l)
		if err != nil {
			return -1, err
		}
		o.Lower = append(o.Lower, at)
	}
	own, err := dir, error(nil)
	if !o.ReadOnly {
		if own, err = mapped("own", dir); err != nil {
			return -1, err
		}
	}
	root := filepath.Join(scratch, "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		return -1, err
	}
	if err := createAs(o.IDs.UID, o.IDs.GID); err != nil {
		return -1, err
	}
	if oneByOne() {
		return makeOverlay(own, o)
	}
	if err := mountOld(own, root, o, goDir); err != nil {
		return -1, err
	}
	return cloneTree(root, 0)
}

// cloneTree returns the descriptor of a mount that shows what is at path.
func cloneTree(path string, flags uint) (int, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, flags|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("bind %s: %w", path, err)
	}
	return tree, nil
}

func placeMapped(source, at string, userns int) error {
	tree, err := cloneTree(source, 0)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if err := mapIDs(tree, source, userns, 0); err != nil {
		return err
	}
	return attach(tree, at)
}

// NoIDMapError says that ids of a file system cannot be mapped.
type NoIDMapError struct {
	Path, Type string // of the file system
	Err        error
}

func (e *NoIDMapError) Error() string {
	return fmt.Sprintf("ids of %s cannot be mapped: its file system (%s) or the kernel has no id-mapped mounts: %v",
		e.Path, e.Type, e.Err)
}

func (e *NoIDMapError) Unwrap() error { return e.Err }

func mapIDs(tree int, source string, userns int, flags uint) error {
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)}
	err := unix.MountSetattr(tree, "", flags|unix.AT_EMPTY_PATH, attr)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return &NoIDMapError{source, fsType(source), err}
	}
	if err != nil {
		return fmt.Errorf("map the ids of %s: %w", source, err)
	}
	return nil
}

// fsNames are file systems that volumes are often on, by their magic numbers.
var fsNames = map[int64]string{
	unix.NFS_SUPER_MAGIC: "nfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.TMPFS_MAGIC: "tmpfs",
	unix.EXT4_SUPER_MAGIC: "ext4",
	unix.XFS_SUPER_MAGIC:  "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.FUSE_SUPER_MAGIC: "fuse",
	unix.CEPH_SUPER_MAGIC: "ceph",
	unix.SMB2_SUPER_MAGIC: "smb", unix.CIFS_SUPER_MAGIC: "cifs", unix.PROC_SUPER_MAGIC: "proc", unix.SYSFS_MAGIC: "sysfs",
	unix.CGROUP2_SUPER_MAGIC: "cgroup2", unix.V9FS_MAGIC: "9p",
}

func fsType(path string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "unknown"
	}
	if name := fsNames[int64(st.Type)]; name != "" {
		return name
	}
	return fmt.Sprintf("type %#x", st.Type)
}
