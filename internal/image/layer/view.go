package layer

import (
	"context"
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// view looks paths up in a stack of layer trees, the topmost first, as the kernel's overlay would merge them. It opens
// each component without following symlinks and resolves them itself, so no symlink of an image leads out of the trees.
type view struct {
	ctx   context.Context
	roots []int // descriptors
	deep  []openPath
	looks *quota // of the image; the context is checked at each 64th look-up
	// opaque reports whether a directory of a tree hides what is below it.
	opaque func(tree int, path string) (bool, error)
	kept   bool // close does not close the roots
}

// Lower is the tree of a layer below.
type Lower struct {
	Path string
	// Unmarked says that no directory of the tree has the overlay's opaque mark, so that none needs to be looked at.
	Unmarked bool
}

// Trees are the trees of the layers below, the topmost first.
type Trees struct {
	Roots    []int  // descriptors of the trees' roots
	Unmarked []bool // as Lower has it
	// Opaque reports whether the directory at a path of a tree hides what is below it. It is set in a process that may
	// not read the overlay's mark itself; if nil, the mark is read.
	Opaque func(tree int, path string) (bool, error)
	Kept   bool // FinalizeConfined does not close the roots
	// Looks is how many look-ups the layers of the image may take, and how many they have taken.
	Looks Looks
}

// Looks counts look-ups in the layers below. Zero for Most is no limit.
type Looks struct {
	Most int64 `json:"most,omitempty"`
	Used int64 `json:"used,omitempty"`
}

// OpenTrees opens trees by their paths.
func OpenTrees(lowers []Lower) (t Trees, err error) {
	for _, one := range lowers {
		fd, err := unix.Open(one.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.close()
			return Trees{}, err
		}
		t.Roots, t.Unmarked = append(t.Roots, fd), append(t.Unmarked, one.Unmarked)
	}
	return t, nil
}

func (t Trees) close() {
	for _, fd := range t.Roots {
		unix.Close(fd)
	}
}

// openPath is a directory of one tree, far below its root. It stays open because the next look-up is usually in it too.
type openPath struct {
	fd   int // -1 if none is open
	path string
}

// deepPath is the length of a path in bytes from which on its directory is opened and kept open.
const deepPath = 256

// close closes what the view has opened, and the roots unless kept is set.
func (v *view) close() {
	v.closeDeep()
	if v.kept {
		return
	}
	for _, fd := range v.roots {
		unix.Close(fd)
	}
}

func (v *view) closeDeep() {
	for _, d := range v.deep {
		if d.fd >= 0 {
			unix.Close(d.fd)
		}
	}
	v.deep = nil
}

// with returns a view with another tree on top; hides reports which directories of that tree are opaque. The caller
// closes it by closeDeep, not by close, because both views share the roots.
func (v *view) with(root int, hides func(path string) bool) *view {
	both := &view{ctx: v.ctx, roots: append([]int{root}, v.roots...), looks: v.looks}
	both.opaque = func(tree int, path string) (bool, error) {
		if tree == 0 {
			return hides(path), nil
		}
		return v.opaque(tree-1, path)
	}
	return both
}

// spot returns a file of one tree as a descriptor and a path: from the tree's root, or from its directory if the path
// is long. The view closes the descriptor.
func (v *view) spot(tree int, dir, name string) (spot, error) {
	if len(dir) < deepPath {
		return spot{v.roots[tree], join(dir, name)}, nil
	}
	if v.deep == nil {
		v.deep = make([]openPath, len(v.roots))
		for i := range v.deep {
			v.deep[i].fd = -1
		}
	}
	d := &v.deep[tree]
	if d.fd >= 0 && d.path == dir {
		return spot{d.fd, name}, nil
	}
	from, rest := v.roots[tree], dir
	if d.fd >= 0 && strings.HasPrefix(dir, d.path+"/") {
		from, rest = d.fd, dir[len(d.path)+1:]
	}
	fd, err := openBeneath(from, rest)
	if err != nil {
		return spot{}, err
	}
	if d.fd >= 0 {
		unix.Close(d.fd)
	}
	*d = openPath{fd, dir}
	return spot{fd, name}, nil
}

// place is the file that a view shows at a path.
type place struct {
	path   string // without symlinks, relative to the root
	tree   int    // the topmost tree that has it
	stat   unix.Stat_t
	exists bool
}

// kind returns the file type, or 0 if there is no file.
func (p place) kind() uint32 {
	if !p.exists {
		return 0
	}
	return p.stat.Mode & unix.S_IFMT
}

// merged is one directory of the view: its path, and the trees whose directories are merged in it, the topmost first.
type merged struct {
	path  string
	trees []int
}

var rootPlace = place{path: ".", exists: true, stat: unix.Stat_t{Mode: unix.S_IFDIR}}

func (v *view) root() (merged, error) {
	d := merged{path: "."}
	for i := range v.roots {
		d.trees = append(d.trees, i)
		if i == len(v.roots)-1 {
			break // there is nothing below it to hide
		}
		if hides, err := v.opaque(i, "."); hides || err != nil {
			return d, err
		}
	}
	return d, nil
}

// child looks up one name in a directory of the view.
func (v *view) child(d merged, name string) (place, merged, error) {
	if len(d.trees) == 0 {
		return place{}, merged{}, nil
	}
	full := join(d.path, name)
	found, sub := place{path: full}, merged{path: full}
	for n, i := range d.trees {
		if err := v.looks.take(1); err != nil {
			return place{}, merged{}, err
		}
		if v.looks.budget.Used%64 == 0 {
			if err := v.ctx.Err(); err != nil {
				return place{}, merged{}, err
			}
		}
		at, err := v.spot(i, d.path, name)
		if err != nil {
			return place{}, merged{}, err
		}
		var st unix.Stat_t
		err = unix.Fstatat(at.fd, at.base, &st, unix.AT_SYMLINK_NOFOLLOW)
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
		if n == len(d.trees)-1 {
			break // there is nothing below it to hide
		}
		hides, err := v.opaque(i, full)
		if err != nil {
			return place{}, merged{}, err
		}
		if hides {
			break
		}
	}
	return found, sub, nil
}

// resolve looks up a path and follows symlinks as a process whose root is the view would; a symlink at the end only if
// follow is set. For a missing file it returns the path that the file would have.
func (v *view) resolve(p string, follow bool) (place, error) {
	root, err := v.root()
	if err != nil {
		return place{}, err
	}
	stack, walk := []merged{root}, newSteps(p)
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

// missing returns the path of a missing file: what is left of the walk below the deepest directory, clamped at the
// root.
func missing(p string, todo string) string {
	full := path.Clean("/" + p + "/" + todo)
	if full == "/" {
		return "."
	}
	return full[1:]
}
