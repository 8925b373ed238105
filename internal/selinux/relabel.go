package selinux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ProtectedError says that a directory is one whose labels the node itself lives by.
type ProtectedError struct{ Path string }

func (e *ProtectedError) Error() string {
	return e.Path + " belongs to the system, and is not relabelled for a container: mount a directory that is only for " +
		"containers, or mount it without " +
		"relabelling and give the container a type that may use it"
}

// whole are directories below which nothing is relabelled, alone those of which only they themselves are not: below
// them volumes may be.
var (
	whole = []string{"/bin", "/boot", "/dev", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr"}
	alone = []string{"/", "/etc", "/etc/passwd", "/etc/shadow", "/etc/group", "/etc/pki", "/etc/ssl", "/etc/ssh",
		"/etc/selinux", "/etc/systemd", "/etc/kubernetes",
		"/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var", "/var/cache", "/var/lib",
		"/var/lib/kubelet", "/var/lib/kubelet/pods",
		"/var/lib/containers", "/var/log", "/var/log/pods", "/var/log/containers", "/var/run", "/var/spool", "/var/tmp"}
)

func (n *Node) protected(path string) bool {
	if slices.Contains(alone, path) || filepath.Dir(path) == "/home" {
		return true
	}
	for _, dir := range whole {
		if within(path, dir) {
			return true
		}
	}
	return slices.ContainsFunc(n.keep, func(dir string) bool { return within(dir, path) || within(path, dir) })
}

// within reports whether path is dir or below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// maxDepth bounds the directories a relabelling holds open.
const maxDepth = 1000

// Relabel labels what is at path, and all below it, what is mounted there too. path has no links in it. None is
// followed, so that a container that works in the volume meanwhile cannot lead it elsewhere. What has the label already
// is not touched, what vanishes meanwhile is no error, and a file system that has no labels, or one for all of its
// files, is left as it is. path itself is labelled last: a relabelling that was cut off can be told. It ends with ctx.
// The error is a *ProtectedError for a directory of the system.
func (n *Node) Relabel(ctx context.Context, path, l string) error {
	if path = filepath.Clean(path); n.protected(path) {
		return &ProtectedError{path}
	}
	top, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("relabel %s: %w", path, err)
	}
	r := relabelling{ctx: ctx, label: l}
	if err := r.tree(os.NewFile(uintptr(top), path), 0); err != nil {
		return fmt.Errorf("relabel %s as %s: %w", path, l, err)
	}
	return nil
}

// relabelling is one Relabel in progress.
type relabelling struct {
	ctx   context.Context
	label string
}

// tree labels a file, which it closes, after what is below it.
func (r relabelling) tree(at *os.File, depth int) error {
	defer at.Close()
	if err := r.ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := r.below(at, depth); err != nil {
			return err
		}
	}
	return r.set(at)
}

func (r relabelling) below(at *os.File, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s: directories are nested more than %d deep", at.Name(), maxDepth)
	}
	fd, err := unix.Openat(int(at.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if gone(err) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: at.Name(), Err: err}
	}
	dir := os.NewFile(uintptr(fd), at.Name())
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(256)
		if errors.Is(err, io.EOF) || gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			child, err := unix.Openat(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if gone(err) {
				continue
			}
			path := filepath.Join(at.Name(), name)
			if err != nil {
				return &os.PathError{Op: "open", Path: path, Err: err}
			}
			if err := r.tree(os.NewFile(uintptr(child), path), depth+1); err != nil {
				return err
			}
		}
	}
}

func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) }

// set goes by the descriptor: the name may lead elsewhere by now.
func (r relabelling) set(at *os.File) error {
	path := "/proc/self/fd/" + strconv.Itoa(int(at.Fd()))
	var now [512]byte
	if n, err := unix.Getxattr(path, attribute, now[:]); err == nil &&
		strings.TrimRight(string(now[:n]), "\x00") == r.label {
		return nil
	}
	err := unix.Setxattr(path, attribute, []byte(r.label), 0)
	if err == nil || gone(err) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return &os.PathError{Op: "setxattr", Path: at.Name(), Err: err}
}
