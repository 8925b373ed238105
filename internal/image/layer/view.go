package layer

import (
	"errors"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// view is a stack of layer trees, the topmost first, seen as the kernel's overlay would show them. Every component is
// looked at without following it, so no symlink of an image leads out of the trees.
type view []string

// place is what a view shows at a path.
type place struct {
	path   string // without symlinks, relative to the root
	host   string // where the topmost of it is
	stat   unix.Stat_t
	exists bool
}

// kind is the file type, 0 when there is nothing.
func (p place) kind() uint32 {
	if !p.exists {
		return 0
	}
	return p.stat.Mode & unix.S_IFMT
}

// dirs is one directory of the view: the trees' directories that make it up, topmost first.
type dirs struct {
	path  string
	hosts []string
}

func (v view) root() (dirs, error) {
	d := dirs{path: "."}
	for _, host := range v {
		d.hosts = append(d.hosts, host)
		if isOpaque(host) {
			break
		}
	}
	return d, nil
}

// child looks up one name in a directory of the view.
func (d dirs) child(name string) (place, dirs, error) {
	found, sub := place{path: join(d.path, name)}, dirs{path: join(d.path, name)}
	for _, dir := range d.hosts {
		host := filepath.Join(dir, name)
		var st unix.Stat_t
		err := unix.Lstat(host, &st)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return place{}, dirs{}, err
		}
		isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
		if isWhiteout(&st) || found.exists && !isDir {
			break
		}
		if !found.exists {
			found.host, found.stat, found.exists = host, st, true
		}
		if !isDir {
			break
		}
		sub.hosts = append(sub.hosts, host)
		if isOpaque(host) {
			break
		}
	}
	return found, sub, nil
}

// at looks up a path through real directories only.
func (v view) at(p string) (place, error) {
	d, err := v.root()
	if err != nil {
		return place{}, err
	}
	var found place
	for _, c := range strings.Split(p, "/") {
		if found, d, err = d.child(c); err != nil || !found.exists {
			return place{}, err
		}
	}
	return found, nil
}

// resolve looks up a path, following symlinks as a process with the view as its root would; the last one only with
// follow. What does not exist has the path it would get.
func (v view) resolve(p string, follow bool) (place, error) {
	root, err := v.root()
	if err != nil {
		return place{}, err
	}
	stack, todo, links := []dirs{root}, strings.Split(p, "/"), 0
	last := place{path: ".", exists: true, stat: unix.Stat_t{Mode: unix.S_IFDIR}}
	for len(todo) > 0 {
		c := todo[0]
		todo = todo[1:]
		here := stack[len(stack)-1]
		if c == "" || c == "." {
			continue
		}
		if c == ".." {
			if len(stack) > 1 {
				stack = stack[:len(stack)-1]
			}
			last = place{path: stack[len(stack)-1].path, exists: true, stat: unix.Stat_t{Mode: unix.S_IFDIR}}
			continue
		}
		found, sub, err := here.child(c)
		if err != nil {
			return place{}, err
		}
		last = found
		switch {
		case !found.exists:
			return place{path: missing(found.path, todo)}, nil
		case found.kind() == unix.S_IFDIR:
			stack = append(stack, sub)
		case found.kind() == unix.S_IFLNK && (follow || rest(todo)):
			target, err := readlinkat(unix.AT_FDCWD, found.host)
			if err != nil {
				return place{}, err
			}
			if links++; links > maxSymlinks || len(todo) > maxPathBytes {
				return place{}, unix.ELOOP
			}
			if path.IsAbs(target) {
				stack = stack[:1]
			}
			todo = append(strings.Split(target, "/"), todo...)
		case rest(todo):
			return place{}, unix.ENOTDIR
		}
	}
	return last, nil
}

// rest says whether any real component is left.
func rest(todo []string) bool {
	for _, c := range todo {
		if c != "" && c != "." {
			return true
		}
	}
	return false
}

// missing joins what is left to a path that is not there, clamped at the root.
func missing(p string, todo []string) string {
	full := path.Clean("/" + p + "/" + strings.Join(todo, "/"))
	if full == "/" {
		return "."
	}
	return full[1:]
}

func isOpaque(host string) bool {
	v, err := lgetxattr(host, "trusted.overlay.opaque")
	return err == nil && string(v) == "y"
}
