package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// removeTree unmounts what is mounted below dir and removes dir. What a mount shows is never removed, also when it
// cannot be unmounted or comes in between: a runtime that fails half way may leave one of anything.
func removeTree(dir string) error {
	dir, err := filepath.EvalSymlinks(dir) // mounts are known by their real paths
	if err != nil {
		return err
	}
	mounted, err := mountsAt(dir)
	if err != nil {
		return err
	}
	for _, at := range slices.Backward(mounted) { // the last one made is the topmost
		err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		// EINVAL says that nothing is mounted there any more: the mount before was shared with it, and took it along.
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return &fs.PathError{Op: "unmount", Path: at, Err: err}
		}
	}
	parent, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	return removeHere(parent, filepath.Base(dir))
}

// mountsAt are the mount points at dir and below it, in the order of their making.
func mountsAt(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for l := range strings.Lines(string(data)) {
		fields := strings.Fields(l)
		if len(fields) < 5 {
			continue
		}
		if at := unescape.Replace(fields[4]); at == dir || strings.HasPrefix(at, dir+"/") {
			found = append(found, at)
		}
	}
	return found, nil
}

// unescape undoes what mountinfo does to paths.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// removeHere removes name in parent and all below it, as far as it is on parent's own mount.
func removeHere(parent *os.File, name string) error {
	path := filepath.Join(parent.Name(), name)
	err := unix.Unlinkat(int(parent.Fd()), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	fd, err := unix.Openat2(int(parent.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	if errors.Is(err, unix.EXDEV) {
		return fmt.Errorf("%s: something is mounted there", path)
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, child := range names {
		if err := removeHere(dir, child); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}
