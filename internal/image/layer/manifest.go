package layer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Types of a manifest entry.
const (
	typeDir      = "d"
	typeFile     = "f"
	typeLink     = "h" // a further name of the file that Link names
	typeSymlink  = "l"
	typeChar     = "c"
	typeBlock    = "b"
	typeFifo     = "p"
	typeWhiteout = "w"
	typeGone     = "-" // a later entry replaced the path and all below it
	typeUnknown  = "?" // never written to a manifest: a socket, which is the placeholder of a device
)

// entry is one line of a manifest. A later line replaces an earlier one of the same path.
type entry struct {
	Path   string            `json:"p"`
	Type   string            `json:"t"`
	Mode   uint32            `json:"m,omitempty"` // permissions with setuid, setgid and sticky
	UID    int               `json:"u,omitempty"`
	GID    int               `json:"g,omitempty"`
	Size   int64             `json:"s,omitempty"`
	Mtime  int64             `json:"T,omitempty"` // nanoseconds
	Hash   string            `json:"h,omitempty"` // sha256 of the content, in hex
	Link   string            `json:"l,omitempty"`
	Dev    uint64            `json:"r,omitempty"`
	Opaque bool              `json:"o,omitempty"`
	Xattrs map[string][]byte `json:"x,omitempty"`
}

// manifestWriter streams entries to a compressed file, so that the memory it needs does not grow with the layer.
type manifestWriter struct {
	*packed
	enc   *json.Encoder
	lines int64
}

func createManifest(name string) (*manifestWriter, error) {
	out, err := createPacked(name, os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return &manifestWriter{packed: out, enc: enc}, nil
}

func (m *manifestWriter) add(e entry) error {
	m.lines++
	return m.enc.Encode(jsonSafe(e))
}

// eachLine calls do for each line of a manifest, counted from 1, until do fails or ctx ends.
func eachLine(ctx context.Context, name string, do func(line int64, e entry) error) error {
	line := int64(0)
	return eachJSON(ctx, name, "manifest", func(raw []byte) error {
		line++
		var e entry
		if err := json.Unmarshal(raw, &e); err != nil {
			return fmt.Errorf("read layer manifest: %w", err)
		}
		return do(line, jsonRaw(e))
	})
}

// goneTree has the paths that an entry of the layer replaced, each with its last typeGone line in the manifest.
type goneTree = pathTree[int64]

// noteGone adds a path to the tree, and charges its memory.
func noteGone(t *goneTree, path string, line int64, memory *quota) error {
	id, rest := t.find(path)
	for rest != "" {
		name, more, _ := strings.Cut(rest, "/")
		if err := memory.take(nodeCost + int64(len(name))); err != nil {
			return err
		}
		id, rest = t.add(id, name), more
	}
	*t.at(id) = line
	return nil
}

// goneAfter reports whether a path, or one above it, was replaced after the given line of the manifest.
func goneAfter(t *goneTree, path string, line int64) bool {
	at := rootNode
	for path != "" && t.count > 1 {
		name, rest, _ := strings.Cut(path, "/")
		id, ok := t.child(at, name)
		if !ok {
			return false
		}
		if *t.at(id) > line {
			return true
		}
		at, path = id, rest
	}
	return false
}

// reunite mends the hard links in the manifest of a layer in which files were replaced. A line typeLink describes a
// file by the name that it is linked to; when that name is gone, or belongs to another file now, reunite appends a line
// that describes the file by itself.
func reunite(ctx context.Context, dir string, gone *goneTree) error {
	name, tree := filepath.Join(dir, ManifestFile), filepath.Join(dir, FS)
	root, err := unix.Open(tree, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	more, err := createManifest(name + ".more")
	if err != nil {
		return err
	}
	err = eachLine(ctx, name, func(line int64, e entry) error {
		if e.Type != typeLink || goneAfter(gone, e.Path, line) {
			return nil
		}
		var st, first unix.Stat_t
		if err := unix.Fstatat(root, e.Path, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		err := unix.Fstatat(root, e.Link, &first, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && first.Ino == st.Ino {
			return nil
		}
		if e, err = observe(ctx, root, e.Path); err != nil {
			return err
		}
		if e.Type == typeUnknown {
			return &HostileError{e.Path, "is a further name of a device that the layer itself replaced"}
		}
		return more.add(e)
	})
	if cerr := more.close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return appendFile(name, name+".more")
}

// appendFile appends the content of the file from to the file to, and removes from.
func appendFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.Remove(from)
}

// blocks estimates the bytes that the content of an entry takes on the disk, in blocks of 4 KiB.
func blocks(e entry) uint64 {
	switch e.Type {
	case typeDir:
		return 4096
	case typeFile:
		return uint64(e.Size+4095) &^ 4095
	}
	return 0
}

func parentOf(p string) string { return path.Dir(p) }
