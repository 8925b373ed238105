package layer

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// GrantsFile lists what a layer needs and a process without CAP_SYS_ADMIN and CAP_MKNOD cannot do: device nodes, the
// overlay's marks, and some attributes. The unpacker writes it; Grant works through it and removes it.
const GrantsFile = "grants"

// The kinds of grants. Those of devices are typeChar and typeBlock.
const (
	grantOpaque  = "o"
	grantImplied = "i" // impliedRoot
	grantXattr   = "x"
)

// grant is one line of the list. Until Grant makes a device, a socket is its placeholder: no tar has an entry for a
// socket, so the two cannot be confused.
type grant struct {
	Path  string `json:"p"`
	Kind  string `json:"k"`
	Dev   uint64 `json:"r,omitempty"`
	First string `json:"l,omitempty"` // the first name of a device, of which Path is a further one
	Name  string `json:"n,omitempty"`
	Value []byte `json:"v,omitempty"`
	Line  int64  `json:"m,omitempty"` // of the manifest: drop compares it with the line that replaced the path
}

// grantList writes the list. It creates the file with the first line.
type grantList struct {
	dir     string
	memory  *quota
	out     *packed
	enc     *json.Encoder
	lines   int64
	devices map[string]grant // by path; charged to memory
}

func (l *grantList) add(g grant) error {
	if l.out == nil {
		out, err := createPacked(filepath.Join(l.dir, GrantsFile), os.O_TRUNC)
		if err != nil {
			return err
		}
		l.out, l.enc = out, json.NewEncoder(out)
		l.enc.SetEscapeHTML(false)
	}
	l.lines++
	g.Path, g.First, g.Name = quote(g.Path), quote(g.First), quote(g.Name)
	return l.enc.Encode(g)
}

// device makes a socket with the device's permissions as its placeholder, and notes the device.
func (l *grantList) device(at spot, path string, e entry, line int64) error {
	if err := unix.Mknodat(at.fd, at.base, unix.S_IFSOCK|e.Mode&0o777, 0); err != nil {
		return err
	}
	return l.note(grant{Path: path, Kind: e.Type, Dev: e.Dev, Line: line})
}

// linked notes that path became a further name of first, in case first is a device that Grant has still to make. gone
// has the paths that the layer has replaced: first may be the name of a file by now.
func (l *grantList) linked(path, first string, line int64, gone *goneTree) error {
	g, waits := l.devices[first]
	if !waits || g.Line > 0 && goneAfter(gone, first, g.Line) {
		return nil
	}
	g.Path, g.First, g.Line = path, first, line
	return l.note(g)
}

func (l *grantList) note(g grant) error {
	if err := l.memory.take(2*nodeCost + int64(2*len(g.Path)+len(g.First))); err != nil {
		return err
	}
	if l.devices == nil {
		l.devices = map[string]grant{}
	}
	l.devices[g.Path] = g
	return l.add(g)
}

// xattr notes an attribute if only a privileged process can set it, and reports whether it did.
func (l *grantList) xattr(path, name string, value []byte, line int64) (noted bool, err error) {
	if !strings.HasPrefix(name, "security.") || name == capability {
		return false, nil
	}
	return true, l.add(grant{Path: path, Kind: grantXattr, Name: name, Value: value, Line: line})
}

func (l *grantList) close() error {
	if l.out == nil {
		return nil
	}
	out := l.out
	l.out = nil
	return out.close()
}

// drop removes the lines of paths that were replaced after the line was written. The list must be closed.
func (l *grantList) drop(ctx context.Context, gone *goneTree) error {
	if l.lines == 0 {
		return nil
	}
	name := filepath.Join(l.dir, GrantsFile)
	kept := &grantList{dir: l.dir, memory: l.memory}
	err := os.Rename(name, name+".all")
	if err == nil {
		err = eachGrant(ctx, name+".all", func(g grant) error {
			if g.Line > 0 && goneAfter(gone, g.Path, g.Line) {
				return nil
			}
			return kept.add(g)
		})
	}
	return errors.Join(err, kept.close(), os.Remove(name+".all"))
}

func eachGrant(ctx context.Context, name string, do func(grant) error) error {
	return eachJSON(ctx, name, "list of grants", func(raw []byte) error {
		var g grant
		if err := json.Unmarshal(raw, &g); err != nil {
			return err
		}
		g.Path, g.First, g.Name = unquote(g.Path), unquote(g.First), unquote(g.Name)
		return do(g)
	})
}
