package layer

import (
	"golang.org/x/sys/unix"
)

// marks tells which directories of the trees of a view are opaque. It does not look at trees that have no mark, and
// remembers what it has looked at: finalizing looks the same directories up for each hard link to a file below.
type marks struct {
	unmarked []bool
	look     func(tree int, path string) (bool, error)
	known    map[marked]bool
	size     int // of the paths in known, in bytes
}

type marked struct {
	tree int
	path string
}

// knownMarks bounds the bytes of the paths that are remembered. Beyond that they are forgotten, and looked at again.
const knownMarks = 4 << 20

func marksOf(t Trees) *marks {
	m := &marks{unmarked: t.Unmarked, look: t.Opaque, known: map[marked]bool{}}
	if m.look == nil {
		m.look = func(tree int, path string) (bool, error) { return IsOpaque(t.Roots[tree], path), nil }
	}
	return m
}

func (m *marks) isOpaque(tree int, path string) (bool, error) {
	if tree < len(m.unmarked) && m.unmarked[tree] {
		return false, nil
	}
	at := marked{tree, path}
	if hides, known := m.known[at]; known {
		return hides, nil
	}
	hides, err := m.look(tree, path)
	if err != nil {
		return false, err
	}
	if m.size += len(path) + nodeCost; m.size > knownMarks {
		m.known, m.size = map[marked]bool{}, len(path)+nodeCost
	}
	m.known[at] = hides
	return hides, nil
}

// IsOpaque reports whether the directory at a path below root has the overlay's opaque mark. It follows no symlinks.
func IsOpaque(root int, path string) bool {
	fd, err := openOwnDir(root, path)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var mark [2]byte
	n, err := unix.Fgetxattr(fd, opaqueXattr, mark[:])
	return err == nil && string(mark[:n]) == "y"
}
