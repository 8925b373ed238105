package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
	"berth/internal/thread"
)

var (
	// ErrNotRegular says that a path leads to something that is not a regular file.
	ErrNotRegular = errors.New("not a regular file")
)

// locate finds path below root without opening what is there. Links, also absolute ones, and .. stay below root.
func locate(root, p string, flags uint64) (*os.File, error) {
	top, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open root", Path: root, Err: err}
	}
	defer unix.Close(top)
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	const tries = 32 // EAGAIN: something was renamed while the kernel looked
	for range tries {
		var fd int
		if fd, err = unix.Openat2(top, path.Join("/", p), how); err == nil {
			return os.NewFile(uintptr(fd), path.Join(root, p)), nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return nil, &os.PathError{Op: "open in root", Path: path.Join(root, p), Err: err}
}

// OpenInRoot opens the regular file at path below root for reading. A device or FIFO is not even opened: that alone can
// block, or do something.
func OpenInRoot(root, p string) (*os.File, error) {
	at, err := locate(root, p, 0)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	info, err := at.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "open in root", Path: at.Name(), Err: ErrNotRegular}
	}
	fd, err := unix.Open(procPath(at), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open in root", Path: at.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), at.Name()), nil
}

func procPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// ReadFile reads the regular file at path below root, of at most so many bytes.
func ReadFile(root, p string, most limit.Budget) ([]byte, error) {
	f, err := OpenInRoot(root, p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return limit.ReadAll("read in root", f, most)
}

// Accounts are /etc/passwd and /etc/group below root, nil where there is none.
func Accounts(root string) (passwd, group []byte, err error) {
	for path, to := range map[string]*[]byte{"/etc/passwd": &passwd, "/etc/group": &group} {
		if *to, err = ReadFile(root, path, limit.AccountFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("read the image's %s: %w", path, err)
		}
	}
	return passwd, group, nil
}

// Resolve is where path below root really is, all links followed below root: a host path without links, for a tree that
// does not change, such as an image's layers. fs.ErrNotExist when there is nothing.
func Resolve(root, p string) (string, error) {
	at, err := locate(root, p, 0)
	if err != nil {
		return "", err
	}
	defer at.Close()
	return os.Readlink(procPath(at))
}

// Place is where path below root is, or would be if what is missing of it were made: all links are followed below root,
// also those that lead nowhere yet. It has no links itself, and is absolute within root. In what such a link leads to,
// .. is taken away with the name before it.
func Place(root, p string) (string, error) {
	p = path.Join("/", p)
	const most = 40 // links, as the kernel has it
	for range most {
		at, err := locate(root, p, 0)
		missing := ""
		if errors.Is(err, fs.ErrNotExist) {
			at, missing, err = deepestDir(root, p)
		}
		if err != nil {
			return "", err
		}
		there, link, err := insideAt(root, at, missing)
		at.Close()
		if err != nil || link == "" {
			return path.Join(there, missing), err
		}
		if !path.IsAbs(link) {
			link = path.Join(there, link)
		}
		_, rest, _ := strings.Cut(missing[1:], "/")
		p = path.Join("/", link, rest)
	}
	return "", &os.PathError{Op: "open in root", Path: path.Join(root, p), Err: unix.ELOOP}
}

// insideAt is where a file is in root, and the link that is there by the first name of what is missing below it; "" if
// there is none.
func insideAt(root string, at *os.File, missing string) (there, link string, err error) {
	top, err := Resolve(root, "/")
	if err == nil {
		there, err = os.Readlink(procPath(at))
	}
	there = path.Join("/", strings.TrimPrefix(there, top))
	name, _, _ := strings.Cut(strings.TrimPrefix(missing, "/"), "/")
	if err != nil || name == "" {
		return there, "", err
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(at.Fd()), name, buf)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return there, "", nil
	}
	if err != nil {
		return there, "", &os.PathError{Op: "readlink in root", Path: path.Join(root, there, name), Err: err}
	}
	return there, string(buf[:n]), nil
}

// MkdirAll makes the directory at path below root and what is missing above it, owned by root, as a container's working
// directory that its image lacks. An existing one is left as it is. It returns soon after the end of ctx: an image may
// name paths of thousands of components.
func MkdirAll(ctx context.Context, root, p string, mode os.FileMode) error {
	p = path.Join("/", p)
	at, missing, err := deepestDir(root, p)
	if err != nil {
		return err
	}
	defer func() { at.Close() }()
	for name := range strings.SplitSeq(missing, "/") {
		if name == "" {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		err := unix.Mkdirat(int(at.Fd()), name, uint32(mode.Perm()))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return &os.PathError{Op: "mkdir in root", Path: path.Join(root, p), Err: err}
		}
		// What is there is a link that leads nowhere, unless it has just been made.
		fd, err := unix.Openat(int(at.Fd()), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open in root", Path: path.Join(root, p), Err: err}
		}
		at.Close()
		at = os.NewFile(uintptr(fd), path.Join(root, p))
	}
	return nil
}

// deepestDir opens the deepest directory above a clean path, or at it, that is there, and says what is missing. It
// looks at as many paths as the number of components has bits.
func deepestDir(root, p string) (at *os.File, missing string, err error) {
	var ends []int // of the paths that may be there, the root's first
	for i := range p {
		if p[i] == '/' {
			ends = append(ends, i)
		}
	}
	if p != "/" {
		ends = append(ends, len(p))
	}
	there, not := 0, len(ends) // the root is
	if at, err = locate(root, p, unix.O_DIRECTORY); err == nil {
		return at, "", nil
	}
	for there+1 < not {
		middle := (there + not) / 2
		found, err := locate(root, p[:ends[middle]], unix.O_DIRECTORY)
		switch {
		case err == nil:
			found.Close()
			there = middle
		case errors.Is(err, fs.ErrNotExist):
			not = middle
		default:
			return nil, "", err
		}
	}
	at, err = locate(root, "/"+p[:ends[there]], unix.O_DIRECTORY)
	return at, p[ends[there]:], err
}

// MkdirAllAs does as MkdirAll, and what it makes is this user's and group's of the host. It needs no right of theirs to
// the way there.
func MkdirAllAs(ctx context.Context, root, p string, mode os.FileMode, uid, gid uint32) error {
	return thread.Run(func() error {
		if err := createAs(uid, gid); err != nil {
			return err
		}
		return MkdirAll(ctx, root, p, mode)
	})
}

// createAs has the calling thread make files as another user, and keep its powers, which go with a change of the user.
func createAs(uid, gid uint32) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&hdr, &caps[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	for _, id := range []struct {
		call  uintptr
		value uint32
	}{{unix.SYS_SETFSGID, gid}, {unix.SYS_SETFSUID, uid}} {
		_, _, _ = unix.RawSyscall(id.call, uintptr(id.value), 0, 0)
		if now, _, _ := unix.RawSyscall(id.call, ^uintptr(0), 0, 0); uint32(now) != id.value { // it tells no error but so
			return fmt.Errorf("make files as %d:%d: %w", uid, gid, unix.EPERM)
		}
	}
	if err := unix.Capset(&hdr, &caps[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}
