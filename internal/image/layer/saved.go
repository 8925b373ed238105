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

	"berth/internal/limit"
	"berth/internal/room"
)

// ResultFile holds what finalizing a layer needs to know of its unpacking, for another process. It is there only until
// then.
const ResultFile = "result"

// Save keeps what Finalize needs to know of a result in dir.
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

// LoadResult reads what Save kept, and removes it. The limits are those that the layer was unpacked with.
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
		disk: &room.Gauge{Floor: lim.Floor, Dir: dir, Remedy: toMakeRoom},
	}
	res.memory.budget.Used, res.bytes.budget.Used = l.number(), l.number()
	res.dirs = loadTree(l, l.dir)
	res.gone = loadTree(l, func(line *int64) { *line = l.number() })
	res.links = l.links()
	if l.err != nil {
		return nil, fmt.Errorf("read what is to be settled: %w", l.err)
	}
	return res, os.Remove(name)
}

// saver writes numbers and texts until an error.
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

// saveTree writes the nodes in the order of their ids, so that they get the same ones again.
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

// loader reads what a saver wrote until an error. What it reads was written by an unpacker that may have been led
// astray, but nothing outside the process that loads depends on it.
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

func (l *loader) links() map[nodeID]map[string]string {
	all := map[nodeID]map[string]string{}
	for n := l.number(); n > 0 && l.err == nil; n-- {
		in, links := nodeID(l.number()), map[string]string{}
		for n := l.number(); n > 0 && l.err == nil; n-- {
			base := l.text(maxName)
			links[base] = l.text(maxPath)
		}
		all[in] = links
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
