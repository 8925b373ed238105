package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"berth/internal/thread"
)

// MaxLayers is how many lower directories the kernel takes (OVL_MAX_STACK).
const MaxLayers = 500

// oneByOne reports whether the kernel takes lower directories one at a time (6.7 and later), which has no limit of a
// page. Before 6.5 it takes whatever option it is told, and refuses what it does not know only when the mount is made.
var oneByOne = sync.OnceValue(func() bool {
	ctx, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(ctx)
	return unix.FsconfigSetString(ctx, "no-option-of-any-kernel", "x") != nil &&
		unix.FsconfigSetString(ctx, "lowerdir+", "/") == nil
})

// unsynced is the option by which an overlay with an upper directory is not synced (Linux 5.10). Without it an unmount
// waits until the whole file system of the upper directory is on the disk, whoever has written there. What a container
// wrote to its root is gone after a power cut in any case: what starts then is another container.
const unsynced = "volatile"

// forgetUnsynced lets the upper directory of an overlay be mounted again: the kernel refuses one that was mounted
// unsynced before, since a power cut may lie between. Here none does: a root is mounted again only in the life of its
// container.
func forgetUnsynced(dir string) error {
	const mark = "work/work/incompat" // what the kernel makes in the work directory, with what is below it
	for _, name := range []string{unsynced + "/dirty", unsynced, ""} {
		if err := os.Remove(filepath.Join(dir, mark, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("let %s be mounted again: %w", dir, err)
		}
	}
	return nil
}

// despiteErrors has mount make an overlay, also where the file system of dir has had an error that nobody has been told
// of: one write of anybody that failed after its call had returned. The kernel refuses an unsynced overlay then, with
// EIO, until somebody syncs the file system, which is told of the error; other mounts and files go on as if nothing had
// happened. Where the next error has come by then, the overlay is one that is synced.
func despiteErrors(dir string, o Options, mount func(Options) error) error {
	err := mount(o)
	if o.ReadOnly || !errors.Is(err, unix.EIO) {
		return err
	}
	if err := hearOfErrors(dir); err != nil {
		return err
	}
	for _, o.synced = range []bool{false, true} {
		if err := forgetUnsynced(dir); err != nil {
			return err
		}
		if again := mount(o); !errors.Is(again, unix.EIO) {
			return again
		}
	}
	return err
}

// hearOfErrors syncs the file system of dir, and so is told of the errors that it has had.
func hearOfErrors(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	_ = unix.Syncfs(int(f.Fd())) // its error is what is to be heard of
	return f.Close()
}

// mountNew mounts by the newer calls, and passes on what the kernel says about a mount it refuses.
func mountNew(dir, mountpoint string, o Options) error {
	mount, err := makeOverlay(dir, o)
	if err != nil {
		return err
	}
	defer unix.Close(mount)
	return attach(mount, mountpoint)
}

// makeOverlay returns the descriptor of a new mount that is nowhere yet.
func makeOverlay(dir string, o Options) (int, error) {
	ctx, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open an overlay: %w", err)
	}
	defer unix.Close(ctx)
	for _, kv := range settings(dir, o) {
		if err := unix.FsconfigSetString(ctx, kv[0], kv[1]); err != nil {
			return -1, fmt.Errorf("overlay %s=%s: %w", kv[0], kv[1], explain(ctx, err))
		}
	}
	if !o.ReadOnly && !o.synced {
		if err := unix.FsconfigSetFlag(ctx, unsynced); err != nil {
			return -1, fmt.Errorf("overlay %s: %w", unsynced, explain(ctx, err))
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, fmt.Errorf("overlay of %d layers: %w", len(o.Lower), explain(ctx, err))
	}
	attr := 0
	if o.ReadOnly {
		attr = unix.MOUNT_ATTR_RDONLY
	}
	mount, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return -1, fmt.Errorf("mount the overlay: %w", explain(ctx, err))
	}
	return mount, nil
}

func settings(dir string, o Options) [][2]string {
	var out [][2]string
	for _, l := range o.Lower {
		out = append(out, [2]string{"lowerdir+", l})
	}
	if !o.ReadOnly {
		out = append(out, [2]string{"upperdir", filepath.Join(dir, "upper")},
			[2]string{"workdir", filepath.Join(dir, "work")})
	}
	// Without an index a root can be mounted again over the same upper directory, whatever happened before.
	out = append(out, [2]string{"index", "off"})
	if o.Label != "" {
		out = append(out, [2]string{"context", o.Label})
	}
	return append(out, [2]string{"source", "overlay"})
}

func attach(mount int, mountpoint string) error {
	if err := unix.MoveMount(mount, "", unix.AT_FDCWD, mountpoint, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach the mount at %s: %w", mountpoint, err)
	}
	return nil
}

// explain adds the kernel's own messages, which a mount context keeps for its owner.
func explain(ctx int, err error) error {
	var said []string
	buf := make([]byte, 1024)
	for {
		n, e := unix.Read(ctx, buf)
		if e != nil || n <= 0 {
			break
		}
		_, text, _ := strings.Cut(string(buf[:n]), " ")
		said = append(said, strings.TrimSpace(text))
	}
	if len(said) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(said, "; "))
}

// mountOld mounts by mount(2), whose options end at a page. So the layers are named by short links in dir, and the
// thread that mounts stands there; standing sees to that.
func mountOld(dir, mountpoint string, o Options, standing func(dir string, f func() error) error) error {
	if len(o.Lower) > MaxLayers {
		return fmt.Errorf("%d layers: the kernel stacks at most %d", len(o.Lower), MaxLayers)
	}
	links, err := os.MkdirTemp(dir, "l")
	if err != nil {
		return err
	}
	defer os.RemoveAll(links) // a directory of links, which are not followed
	var lower []string
	for i, l := range o.Lower {
		name := strconv.FormatInt(int64(i), 36)
		if err := os.Symlink(l, filepath.Join(links, name)); err != nil {
			return err
		}
		lower = append(lower, name)
	}
	data := "lowerdir=" + strings.Join(lower, ":") + ",index=off"
	if !o.ReadOnly {
		data += ",upperdir=../upper,workdir=../work"
	}
	if !o.ReadOnly && !o.synced {
		data += "," + unsynced
	}
	if o.Label != "" {
		data += fmt.Sprintf(",context=%q", o.Label)
	}
	flags := uintptr(0)
	if o.ReadOnly {
		flags = unix.MS_RDONLY
	}
	return standing(links, func() error {
		if err := unix.Mount("overlay", mountpoint, "overlay", flags, data); err != nil {
			return fmt.Errorf("overlay of %d layers: %w", len(o.Lower), err)
		}
		return nil
	})
}

// inDir runs f on a thread of its own that stands in dir. The thread ends with the call: its directory is not the
// process's.
func inDir(dir string, f func() error) error {
	return thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare the working directory: %w", err)
		}
		return goDir(dir, f)
	})
}

// goDir runs f in dir, on a thread that shares its directory with no other.
func goDir(dir string, f func() error) error {
	if err := unix.Chdir(dir); err != nil {
		return &os.PathError{Op: "chdir", Path: dir, Err: err}
	}
	return f()
}

// bindReadOnly shows one directory, read-only: an overlay needs two.
func bindReadOnly(source, mountpoint string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("bind %s: %w", source, err)
	}
	defer unix.Close(tree)
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE}
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, attr)
	if errors.Is(err, unix.ENOSYS) { // before 5.12
		return bindOld(source, mountpoint)
	}
	if err != nil {
		return fmt.Errorf("bind %s read-only: %w", source, err)
	}
	return attach(tree, mountpoint)
}

// bindOld takes two steps, and undoes the first when the second fails: a writable layer must not stay in sight.
func bindOld(source, mountpoint string) error {
	if err := unix.Mount(source, mountpoint, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", source, err)
	}
	if err := unix.Mount("", mountpoint, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return errors.Join(fmt.Errorf("bind %s read-only: %w", source, err), Unmount(mountpoint))
	}
	return nil
}
