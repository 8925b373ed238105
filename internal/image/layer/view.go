package layer

import (
	"context"
	"errors"
	"path"

	"golang.org/x/sys/unix"
)

// view is a stack of layer trees, the topmost first, seen as the kernel's overlay would show them. Every component is
// looked at without following it, so no symlink of an image leads out of the trees.
type view struct {
	ctx   context.Context
	roots []int // descriptors
	looks int   // at names in one tree, against the context
}

func openView(ctx context.Context, trees []string) (*view, error) {
	v := &view{ctx: ctx}
	for _, tree := range trees {
		fd, err := unix.Open(tree, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			v.close()
			return nil, err
		}
		v.roots = append(v.roots, fd)
	}
	return v, nil
}

func (v *view) close() {
	for _, fd := range v.roots {
		unix.Close(fd)
	}
}

// with is the view with another tree on top. It is not to be closed.
func (v *view) with(root int) *view {
	return &view{ctx: v.ctx, roots: append([]int{root}, v.roots...)}
}

// place is what a view shows at a path.
type place struct {
	path   string // without symlinks, relative to the root
	tree   int    // which of the view's has the topmost of it
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

// merged is one directory of the view: the trees whose directories at its path make it up, topmost first.
type merged struct {
	path  string
	trees []int
}

var rootPlace = place{path: ".", exists: true, stat: unix.Stat_t{Mode: unix.S_IFDIR}}

func (v *view) root() merged {
	d := merged{path: "."}
	for i := range v.roots {
		d.trees = append(d.trees, i)
		if isOpaque(v.roots[i], ".") {
			break
		}
	}
	return d
}

// child looks up one name in a directory of the view.
func (v *view) child(d merged, name string) (place, merged, error) {
	if len(d.trees) == 0 {
		return place{}, merged{}, nil
	}
	full := join(d.path, name)
	found, sub := place{path: full}, merged{path: full}
	for _, i := range d.trees {
		if v.looks++; v.looks%64 == 0 {
			if err := v.ctx.Err(); err != nil {
				return place{}, merged{}, err
			}
		}
		var st unix.Stat_t
		err := unix.Fstatat(v.roots[i], full, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return place{}, merged{}, err
		}
		isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
		if isWhiteout(&st) || found.exists && !isDir {
			break
		}
		if !found.exists {
			found.tree, found.stat, found.exists = i, st, true
		}
		if !isDir {
			break
		}
		sub.trees = append(sub.trees, i)
		if isOpaque(v.roots[i], full) {
			break
		}
	}
	return found, sub, nil
}

// resolve looks up a path, following symlinks as a process with the view as its root would; the last one only with
// follow. What does not exist has the path it would get.
func (v *view) resolve(p string, follow bool) (place, error) {
	stack, walk := []merged{v.root()}, newSteps(p)
	last := rootPlace
	for {
		c, err := walk.next(v.ctx)
		if c == "" || err != nil {
			return last, err
		}
		if c == ".." {
			if len(stack) > 1 {
				stack = stack[:len(stack)-1]
			}
			last = rootPlace
			last.path = stack[len(stack)-1].path
			continue
		}
		found, sub, err := v.child(stack[len(stack)-1], c)
		if err != nil {
			return place{}, err
		}
		last = found
		switch {
		case !found.exists:
			return place{path: missing(join(stack[len(stack)-1].path, c), walk.todo)}, nil
		case found.kind() == unix.S_IFDIR:
			stack = append(stack, sub)
		case found.kind() == unix.S_IFLNK && (follow || walk.rest()):
			target, err := readlinkat(v.roots[found.tree], found.path)
			if err != nil {
				return place{}, err
			}
			if err := walk.follow(target); err != nil {
				return place{}, err
			}
			if path.IsAbs(target) {
				stack = stack[:1]
			}
		case walk.rest():
			return place{}, unix.ENOTDIR
		}
	}
}

// missing joins what is left to a path that is not there, clamped at the root.
func missing(p string, todo string) string {
	full := path.Clean("/" + p + "/" + todo)
	if full == "/" {
		return "."
	}
	return full[1:]
}

func isOpaque(root int, p string) bool {
	v, err := getXattr(root, p, opaqueXattr)
	return err == nil && string(v) == "y"
}
