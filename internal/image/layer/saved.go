package layer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"berth/internal/diskspace"
	"berth/internal/limit"
)

// ResultFile holds the Result of unpacking a layer between the process that unpacks and the one that finalizes it.
// LoadResult removes it.
const ResultFile = "result"

// Save writes what Finalize needs of a result to dir.
func (r *Result) Save(dir string) error {
	out, err := createPacked(filepath.Join(dir, ResultFile), os.O_TRUNC)
	if err != nil {
		return err
	}
	w := &saver{out: out}
	w.numbers(int64(r.Bytes), int64(r.Inodes), int64(r.replaced), r.memory.budget.Used, r.bytes.budget.Used)
	saveTree(w, r.dirs, w.dir)
	saveTree(w, r.gone, func(line *int64) { w.numbers(*line) })
	w.links(r.links)
	return errors.Join(w.err, out.close())
}

// LoadResult reads what Save wrote, and removes the file. The limits must be those that the layer was unpacked with.
func LoadResult(ctx context.Context, dir string, lim Limits) (*Result, error) {
	name := filepath.Join(dir, ResultFile)
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxPackedWindow))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	l := &loader{r: bufio.NewReader(z), ctx: ctx}
	res := &Result{
		Bytes: uint64(l.number()), Inodes: uint64(l.number()), replaced: int(l.number()), Waits: true,
		memory: newQuota(limit.LayerMemory.At(lim.Memory)), bytes: newQuota(limit.LayerBytes.At(lim.Bytes)),
		disk: &diskspace.Gauge{Floor: lim.Floor, Dir: dir, Remedy: toMakeRoom},
	}
	res.memory.budget.Used, res.bytes.budget.Used = l.number(), l.number()
	res.dirs = loadTree(l, l.dir)
	res.gone = loadTree(l, func(line *int64) { *line = l.number() })
	res.links = l.links(res.dirs.count)
	if l.err != nil {
		return nil, fmt.Errorf("read what is to be finalized: %w", l.err)
	}
	return res, os.Remove(name)
}

// saver writes numbers and texts. After the first error, err, it writes nothing more.
type saver struct {
	out     io.Writer
	scratch []byte
	err     error
}

func (w *saver) numbers(all ...int64) {
	w.scratch = w.scratch[:0]
	for _, n := range all {
		w.scratch = binary.AppendVarint(w.scratch, n)
	}
	w.write(w.scratch)
}

func (w *saver) text(b []byte) {
	w.numbers(int64(len(b)))
	w.write(b)
}

func (w *saver) write(b []byte) {
	if w.err == nil {
		_, w.err = w.out.Write(b)
	}
}

func (w *saver) dir(d *dirInfo) {
	w.numbers(d.mtime, int64(d.uid), int64(d.gid), int64(d.length), int64(d.mode), int64(d.flags))
}

func (w *saver) links(all map[nodeID]map[string]string) {
	w.numbers(int64(len(all)))
	for in, links := range all {
		w.numbers(int64(in), int64(len(links)))
		for base, target := range links {
			w.text([]byte(base))
			w.text([]byte(target))
		}
	}
}

// saveTree writes the nodes in the order of their ids, so that loadTree gives them the same ids.
func saveTree[T any](w *saver, t *pathTree[T], value func(*T)) {
	w.numbers(int64(t.count))
	value(t.at(rootNode))
	for id := nodeID(1); int(id) < t.count; id++ {
		gone := int64(0)
		if t.node(id).gone {
			gone = 1
		}
		w.numbers(int64(t.node(id).parent), gone)
		w.text(t.nameOf(id))
		value(t.at(id))
	}
}

// loader reads what a saver wrote. After the first error, err, it returns zeros. An image may have subverted the
// unpacker that wrote the file, so ids and lengths are checked; other wrong content makes a wrong layer of that image.
type loader struct {
	ctx context.Context
	r   *bufio.Reader
	err error
}

func (l *loader) number() int64 {
	if l.err == nil {
		l.err = l.ctx.Err()
	}
	if l.err != nil {
		return 0
	}
	n, err := binary.ReadVarint(l.r)
	l.err = err
	return n
}

func (l *loader) text(most int64) string {
	n := l.number()
	if n < 0 || n > most {
		l.fail("a text of %d bytes", n)
	}
	if l.err != nil {
		return ""
	}
	b := make([]byte, n)
	_, l.err = io.ReadFull(l.r, b)
	return string(b)
}

func (l *loader) fail(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf(format, args...)
	}
}

func (l *loader) dir(d *dirInfo) {
	d.mtime, d.uid, d.gid = l.number(), uint32(l.number()), uint32(l.number())
	d.length, d.mode, d.flags = uint16(l.number()), uint16(l.number()), dirFlags(l.number())
}

// links reads the hard links in any of dirs directories.
func (l *loader) links(dirs int) map[nodeID]map[string]string {
	all := map[nodeID]map[string]string{}
	for n := l.number(); n > 0 && l.err == nil; n-- {
		in, links := l.number(), map[string]string{}
		if in < 0 || in >= int64(dirs) {
			l.fail("hard links are in directory %d of %d", in, dirs)
			break
		}
		for n := l.number(); n > 0 && l.err == nil; n-- {
			base := l.text(maxName)
			links[base] = l.text(maxPath)
		}
		all[nodeID(in)] = links
	}
	return all
}

func loadTree[T any](l *loader, value func(*T)) *pathTree[T] {
	t := newPathTree[T]()
	count := l.number()
	value(t.at(rootNode))
	for id := int64(1); id < count && l.err == nil; id++ {
		parent, gone := l.number(), l.number()
		name := l.text(maxName)
		if parent < 0 || parent >= id {
			l.fail("directory %d is in %d", id, parent)
			break
		}
		made := t.add(nodeID(parent), name)
		value(t.at(made))
		if gone != 0 {
			t.remove(made)
		}
	}
	return t
}
