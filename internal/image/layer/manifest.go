package layer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"github.com/klauspost/compress/zstd"
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
	typeGone     = "-" // the path and all below it were replaced
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

// manifestWriter streams entries to a compressed file, so that a layer of any length needs the same memory.
type manifestWriter struct {
	*packed
	enc *json.Encoder
}

func createManifest(name string) (*manifestWriter, error) {
	out, err := createPacked(name, os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return &manifestWriter{out, enc}, nil
}

func (m *manifestWriter) add(e entry) error { return m.enc.Encode(jsonSafe(e)) }

// manifest is a whole manifest in memory, by path. Only Settle, Verify and a layer with replaced entries need it.
type manifest map[string]entry

func readManifest(name string) (manifest, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(64<<20))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	m, g := manifest{}, gone{map[string]int{}, map[string]int{}}
	for dec, i := json.NewDecoder(z), 1; ; i++ {
		var e entry
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			m.dropGone(g)
			return m, nil
		} else if err != nil {
			return nil, fmt.Errorf("read layer manifest: %w", err)
		}
		e = jsonRaw(e)
		if e.Type == typeGone {
			g.paths[e.Path] = i
			continue
		}
		m[e.Path] = e
		if len(g.paths) > 0 {
			g.lines[e.Path] = i
		}
	}
}

// gone is what a manifest says was replaced: the last line that says so of a path, and of what came after the first of
// those, the line.
type gone struct{ paths, lines map[string]int }

// dropGone removes what was replaced, with all below it, after its own line.
func (m manifest) dropGone(g gone) {
	if len(g.paths) == 0 {
		return
	}
	for p := range m {
		for up := p; up != "." && up != "/"; up = parentOf(up) {
			if g.paths[up] > g.lines[p] {
				delete(m, p)
				break
			}
		}
	}
}

// drop removes a path and all below it.
func (m manifest) drop(p string) {
	for q := range m {
		if within(q, p) {
			delete(m, q)
		}
	}
}

// moves are new names by old ones. What is below a directory moves with it.
type moves map[string]string

// now is the name that p has after the moves.
func (m moves) now(p string) string {
	for up := p; up != "." && up != "/"; up = parentOf(up) {
		if to, ok := m[up]; ok {
			return to + p[len(up):]
		}
	}
	return p
}

// rename has the manifest follow the moves. Links are names too.
func (m manifest) rename(by moves) {
	var changed []entry
	for q, e := range m {
		e.Path = by.now(q)
		if e.Type == typeLink {
			e.Link = by.now(e.Link)
		}
		if e.Path != q || e.Link != m[q].Link {
			delete(m, q)
			changed = append(changed, e)
		}
	}
	for _, e := range changed {
		m[e.Path] = e
	}
}

// renameKeys has the keys of a map follow the moves, and returns those that are new.
func renameKeys[V any](m map[string]V, by moves) []string {
	fresh := map[string]V{}
	for k, v := range m {
		if now := by.now(k); now != k {
			delete(m, k)
			fresh[now] = v
		}
	}
	maps.Copy(m, fresh)
	return sortedKeys(fresh)
}

// reunite looks at the tree root, in which names were replaced: a further name of a file whose first name is gone, or is now
// another's, stands for itself.
func (m manifest) reunite(root string) error {
	for _, p := range m.paths() {
		e := m[p]
		if e.Type != typeLink {
			continue
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(root, p), &st); err != nil {
			return err
		}
		if linkDiffers(root, e, &st) == "" {
			continue
		}
		var err error
		if m[p], err = observe(root, p); err != nil {
			return err
		}
	}
	return nil
}

func (m manifest) paths() []string {
	out := make([]string, 0, len(m))
	for p := range m {
		out = append(out, p)
	}
	sort.Strings(out)
	return out
}

// write replaces the manifest of the layer directory.
func (m manifest) write(dir string) error {
	name := filepath.Join(dir, ManifestFile)
	w, err := createManifest(name + ".new")
	if err != nil {
		return err
	}
	for _, p := range m.paths() {
		if err := w.add(m[p]); err != nil {
			return errors.Join(err, w.close())
		}
	}
	if err := w.close(); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// usage is what the layer takes of the disk, near enough for accounting: blocks of 4 KiB, and inodes.
func (m manifest) usage() (bytes, inodes uint64) {
	for _, e := range m {
		if e.Type != typeLink {
			bytes, inodes = bytes+blocks(e), inodes+1
		}
	}
	return bytes, inodes
}

func blocks(e entry) uint64 {
	switch e.Type {
	case typeDir:
		return 4096
	case typeFile:
		return uint64(e.Size+4095) &^ 4095
	}
	return 0
}

// within says whether p is dir or below it.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, dir+"/")
}

func parentOf(p string) string { return path.Dir(p) }
