package rootfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Staging is what a staged volume shall be.
type Staging struct {
	IDs IDMap
	// ReadOnly makes it read-only with all that is mounted below it.
	ReadOnly bool
	// Follow has later mounts of the host appear in it.
	Follow bool
	// Options are those of MountOptions that the mount has, without what is below it.
	Options []string
}

// MountOptions are the options that a staged volume can have. None can widen what the host's own mount allows.
func MountOptions() []string { return slices.Sorted(maps.Keys(mountAttrs)) }

// mountAttrs are the kernel's attributes. How access times are kept is one attribute of several values.
var mountAttrs = map[string]struct{ set, clear uint64 }{
	"nosuid": {unix.MOUNT_ATTR_NOSUID, 0}, "nodev": {unix.MOUNT_ATTR_NODEV, 0}, "noexec": {unix.MOUNT_ATTR_NOEXEC, 0},
	"nosymfollow": {unix.MOUNT_ATTR_NOSYMFOLLOW, 0}, "nodiratime": {unix.MOUNT_ATTR_NODIRATIME, 0},
	"noatime":     {unix.MOUNT_ATTR_NOATIME, unix.MOUNT_ATTR__ATIME},
	"relatime":    {unix.MOUNT_ATTR_RELATIME, unix.MOUNT_ATTR__ATIME},
	"strictatime": {unix.MOUNT_ATTR_STRICTATIME, unix.MOUNT_ATTR__ATIME},
}

func setOptions(tree int, options []string) error {
	attr := &unix.MountAttr{}
	for _, o := range options {
		a, ok := mountAttrs[o]
		if !ok {
			return fmt.Errorf("mount option %q is not one of %s", o, strings.Join(MountOptions(), ", "))
		}
		if a.clear != 0 {
			attr.Attr_set &^= unix.MOUNT_ATTR__ATIME // of several the last counts
		}
		attr.Attr_set, attr.Attr_clr = attr.Attr_set|a.set, attr.Attr_clr|a.clear
	}
	if len(options) == 0 {
		return nil
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, attr); err != nil {
		return fmt.Errorf("mount options %s: %w", strings.Join(options, ","), err)
	}
	return nil
}

// StrictOptions are those options of the mount at a path that whoever is in a user namespace cannot take away, of
// nosuid, nodev and noexec.
func StrictOptions(path string) ([]string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	var options []string
	for _, o := range []struct {
		flag int64
		name string
	}{{unix.ST_NOSUID, "nosuid"}, {unix.ST_NODEV, "nodev"}, {unix.ST_NOEXEC, "noexec"}} {
		if int64(st.Flags)&o.flag != 0 {
			options = append(options, o.name)
		}
	}
	return options, nil
}

var errOldMounts = errors.New("the kernel cannot change mounts with what is below them: it must be 5.12 or newer")

// Stage mounts what is at source, a directory or a file, and all that is mounted below it, once more at target, which
// it makes. No runtime has to know then what a mount can be made into. When something is mounted there already, nothing
// is done. Unstage is its undo. Nothing that is done to the mounts at target ever reaches the host's. The disk of
// source may hang; when it goes on after ctx has ended, nothing is made any more.
func Stage(ctx context.Context, source, target string, o Staging) error {
	if err := stage(ctx, source, target, o); err != nil {
		return fmt.Errorf("stage %s: %w", source, err)
	}
	return nil
}

func stage(ctx context.Context, source, target string, o Staging) error {
	if mounted, err := isMount(target); err != nil || mounted {
		return err
	}
	tree, err := cloneTree(source, unix.AT_RECURSIVE)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	var st unix.Stat_t
	if err := cmp.Or(unix.Fstat(tree, &st), context.Cause(ctx)); err != nil {
		return err
	}
	if err := makeTarget(target, st.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return err
	}
	// Before it is anywhere: of a peer of the host's mounts an unmount would reach them.
	attr := &unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if o.Follow {
		attr.Propagation = unix.MS_SLAVE
	}
	if o.ReadOnly {
		attr.Attr_set = unix.MOUNT_ATTR_RDONLY
	}
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr)
	if errors.Is(err, unix.ENOSYS) {
		return errOldMounts
	}
	if err != nil {
		return err
	}
	if err := setOptions(tree, o.Options); err != nil {
		return err
	}
	if err := mapVolume(tree, source, o.IDs.UserNS); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return attach(tree, target)
}

// mapVolume maps the ids of a volume with all that is mounted below it. Where that cannot be, it maps those of the
// volume alone; files of the mounts below it belong to the user nobody then.
func mapVolume(tree int, source, path string) error {
	if path == "" {
		return nil
	}
	userns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer userns.Close()
	if mapIDs(tree, source, int(userns.Fd()), unix.AT_RECURSIVE) == nil {
		return nil
	}
	return mapIDs(tree, source, int(userns.Fd()), 0)
}

// makeTarget makes what the volume can be mounted on: a directory, or a file.
func makeTarget(target string, dir bool) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o711); err != nil {
		return err
	}
	if dir {
		return os.MkdirAll(target, 0o700)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// Unstage takes away every volume that is staged in dir, and dir; nil when there is none.
func Unstage(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unstage: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		// A container may have what is mounted below the volume as slaves of the mounts here, which would go with these:
		// they become slaves of the host's.
		err := unix.Mount("", path, "", unix.MS_REC|unix.MS_PRIVATE, "")
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // nothing is mounted
			return fmt.Errorf("unstage: make the mounts at %s private: %w", path, err)
		}
		if err := Unmount(path); err != nil {
			return fmt.Errorf("unstage: %w", err)
		}
	}
	return Remove(dir)
}
