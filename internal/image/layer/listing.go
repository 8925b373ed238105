package layer

import (
	"context"
	"fmt"
	"hash/maphash"
)

// listing is what Verify keeps of a manifest while it reads it again: which line of a path is the last one, and what
// the tar-split metadata is compared with. A layer may have millions of files, and the daemon has a bound of memory: so
// a path is kept as a hash of 64 bits, whose seed nobody knows who makes images.
type listing struct {
	seed maphash.Seed
	last map[uint64]listed // by the hash of the path
	gone *goneTree
}

// listed is the last line of a path.
type listed struct {
	// about is the size of a file, and the hash of the path that a typeLink names.
	about uint64
	line  uint32 // limits.max_layer_entries is far below 2^32, and an entry makes a few lines
	kind  byte   // of the type
}

// list reads a manifest.
func list(ctx context.Context, name string) (*listing, error) {
	l := &listing{seed: maphash.MakeSeed(), last: map[uint64]listed{}, gone: newPathTree[int64]()}
	err := eachLine(ctx, name, func(line int64, e entry) error {
		if len(e.Type) != 1 { // the process that unpacked the layer wrote it, and is not believed
			return fmt.Errorf("line %d of the layer's manifest has the type %q, which is none", line, e.Type)
		}
		if e.Type == typeGone {
			*l.gone.at(l.gone.make(e.Path)) = line
			return nil
		}
		one := listed{about: uint64(e.Size), line: uint32(line), kind: e.Type[0]}
		if e.Type == typeLink {
			one.about = l.hash(e.Link)
		}
		l.last[l.hash(e.Path)] = one
		return nil
	})
	return l, err
}

func (l *listing) hash(path string) uint64 { return maphash.String(l.seed, path) }

// has reports whether the layer is to have a path.
func (l *listing) has(path string) bool {
	one, ok := l.last[l.hash(path)]
	return ok && !goneAfter(l.gone, path, int64(one.line))
}

// holds reports whether a line says what the layer is to have: no later one replaces it.
func (l *listing) holds(line int64, e entry) bool {
	return e.Type != typeGone && int64(l.last[l.hash(e.Path)].line) == line && !goneAfter(l.gone, e.Path, line)
}

// fileOf returns the size of the file that the layer is to have at a path, by whichever name of it the manifest
// describes it.
func (l *listing) fileOf(path string) (size int64, ok bool) {
	if !l.has(path) {
		return 0, false
	}
	one := l.last[l.hash(path)]
	if one.kind == typeLink[0] {
		one = l.last[one.about]
	}
	return int64(one.about), one.kind == typeFile[0]
}
