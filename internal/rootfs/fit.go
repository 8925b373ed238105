package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// UnfitError says that a file system cannot hold the layers of a root, and why.
type UnfitError struct {
	Dir string
	Why error
}

func (e *UnfitError) Error() string {
	return fmt.Sprintf("the file system of %s cannot hold image layers: %v", e.Dir, e.Why)
}

func (e *UnfitError) Unwrap() error { return e.Why }

// TryLayers finds out whether directories below dir can be the layers of a root: it makes two small ones in a directory
// of their own, which it removes again, and an overlay of them that is mounted nowhere. An *UnfitError says that they
// cannot. After any other error, such as that of a full or read-only file system, nothing is known.
func TryLayers(dir string) error {
	scratch, err := os.MkdirTemp(dir, "try-")
	if err != nil {
		return fmt.Errorf("try layers: %w", err)
	}
	defer os.RemoveAll(scratch)
	err = tryLayers(filepath.Join(scratch, "top"), filepath.Join(scratch, "bottom"))
	var unfit *UnfitError
	switch {
	case errors.As(err, &unfit):
		unfit.Dir = dir
		return unfit
	case err != nil:
		return fmt.Errorf("try layers in %s: %w", dir, err)
	}
	return nil
}

func tryLayers(top, bottom string) error {
	for _, d := range []string{filepath.Join(top, "opaque"), filepath.Join(bottom, "opaque", "hidden"),
		filepath.Join(bottom, "gone")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	if err := unix.Setxattr(filepath.Join(top, "opaque"), "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		return unfit("trusted.* extended attributes", err)
	}
	if err := unix.Mknod(filepath.Join(top, "gone"), unix.S_IFCHR, 0); err != nil {
		return unfit("device nodes, as whiteouts are", err)
	}
	return tryOverlay(top, bottom)
}

// unfit judges an error that tells what a file system has not got. One without room, or a broken one, may have it.
func unfit(what string, err error) error {
	for _, passing := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO} {
		if errors.Is(err, passing) {
			return err
		}
	}
	return &UnfitError{Why: fmt.Errorf("it has no %s: %w", what, err)}
}

// tryOverlay makes an overlay that only its descriptor names. A kernel without the calls for that (before 5.2), or a
// caller who may not mount, finds out at the first container.
func tryOverlay(top, bottom string) error {
	ctx, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil
	}
	defer unix.Close(ctx)
	lowers, err := descriptors(top, bottom)
	if err != nil {
		return err
	}
	defer lowers[0].Close()
	defer lowers[1].Close()
	// Named by descriptors: whatever characters the paths have, they need no escapes.
	option := fmt.Sprintf("/proc/self/fd/%d:/proc/self/fd/%d", lowers[0].Fd(), lowers[1].Fd())
	if err := unix.FsconfigSetString(ctx, "lowerdir", option); err != nil {
		return &UnfitError{Why: explain(ctx, err)}
	}
	if err := unix.FsconfigCreate(ctx); errors.Is(err, unix.EPERM) {
		return nil
	} else if err != nil {
		return &UnfitError{Why: fmt.Errorf("no overlay can be made of them: %w", explain(ctx, err))}
	}
	mount, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return explain(ctx, err)
	}
	defer unix.Close(mount)
	for _, hidden := range []string{"gone", "opaque/hidden"} {
		var st unix.Stat_t
		if err := unix.Fstatat(mount, hidden, &st, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, fs.ErrNotExist) {
			return &UnfitError{Why: fmt.Errorf("an overlay shows what a layer removed (%s: %v)", hidden, err)}
		}
	}
	return nil
}

func descriptors(top, bottom string) (dirs [2]*os.File, err error) {
	if dirs[0], err = os.Open(top); err != nil {
		return dirs, err
	}
	if dirs[1], err = os.Open(bottom); err != nil {
		_ = dirs[0].Close()
	}
	return dirs, err
}

// TryMapped finds out whether a root can have its ids mapped whose layers are on the file system of layers, and what is
// written on that of writable. It works in a directory of its own in each, which it removes again, also what a killed
// one left. ids is a user namespace for it.
func TryMapped(layers, writable string, ids IDMap) error {
	const name = "try-mapped"
	lower, own := filepath.Join(layers, name+"-lower"), filepath.Join(writable, name)
	err := errors.Join(Remove(lower), Remove(own))
	if err == nil {
		err = errors.Join(tryMapped(lower, own, ids), Remove(lower), Remove(own))
	}
	if err != nil {
		return fmt.Errorf("try an id-mapped root: %w", err)
	}
	return nil
}

// tryMapped writes to a root that is mounted nowhere: a kernel may make one that it only lets read.
func tryMapped(lower, own string, ids IDMap) error {
	scratch := filepath.Join(own, "scratch")
	for _, d := range []string{lower, own, scratch} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	o := Options{Lower: []string{lower}, IDs: ids}
	if err := makeDirs(own, o); err != nil {
		return err
	}
	mount := -1
	err := despiteErrors(own, o, func(o Options) (err error) {
		mount, err = makeMapped(own, scratch, o)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(mount)
	return MkdirAllAs(context.Background(), fmt.Sprintf("/proc/self/fd/%d", mount), "/made", 0o755, ids.UID, ids.GID)
}

// TryRecursive says why this kernel cannot change a mount with all that is mounted below it; nil if it can.
func TryRecursive() error {
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE,
		&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if errors.Is(err, unix.ENOSYS) {
		return errOldMounts
	}
	return nil
}
