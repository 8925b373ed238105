// Package bolt reads files of bbolt, the key-value store in which containerd keeps its metadata, and trusts nothing in
// them. It reads buckets from one end to the other: it neither searches nor writes.
//
// bbolt itself maps the file and follows what it says. A file that was cut short faults, and one whose pages lead in a
// circle makes it recurse until the process is killed, which no caller can recover from.
package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// The sizes and flags of the format.
const (
	magic   = 0xED0CDAED
	version = 2

	headerSize  = 16 // of a page: id, flags, count, overflow
	elementSize = 16 // of an entry of a page
	metaSize    = 64
	bucketSize  = 16 // of what a bucket's entry begins with: the page of its root, and a sequence

	branchPage = 0x01
	leafPage   = 0x02

	bucketEntry = 0x01

	leastPageSize, mostPageSize = 512, 1 << 20
)

// The bounds of what is read. A store of ten thousand images stays far below them.
const (
	mostDepth    = 32
	mostPage     = 64 << 20 // bytes, with those that overflow
	mostBytes    = 4 << 30  // of all pages that are read
	mostElements = 16 << 20 // of all pages that are read
)

// DB is a file.
type DB struct {
	file io.ReaderAt
	size int64
	meta

	bytes, elements int64 // that were read
}

// Bucket is a set of keys with values, and with buckets below it.
type Bucket struct {
	db     *DB
	root   uint64
	inline []byte // the one page of a small bucket, which lies in its entry
}

// Entry is one key of a bucket. Value and Bucket are nil for the respective other.
type Entry struct {
	Key    string
	Value  []byte // is valid until Each goes on
	Bucket *Bucket
}

// Open finds the newest whole state in a file.
func Open(file io.ReaderAt, size int64) (*DB, error) {
	db := &DB{file: file, size: size}
	states := []*meta{db.state(0)}
	if states[0] != nil {
		states = append(states, db.state(states[0].pageSize))
	} else {
		for at := int64(leastPageSize); at <= mostPageSize; at *= 2 {
			states = append(states, db.state(at))
		}
	}
	var newest *meta
	for _, m := range states {
		if m != nil && (newest == nil || m.transaction > newest.transaction) {
			newest = m
		}
	}
	if newest == nil {
		return nil, errors.New("it is no file of bbolt, or its beginning is damaged")
	}
	db.meta = *newest
	return db, nil
}

// Root is the bucket that holds all others.
func (db *DB) Root() *Bucket { return &Bucket{db: db, root: db.root} }

// meta is what one of the two first pages says.
type meta struct {
	pageSize    int64
	root        uint64 // page of the bucket that holds all others
	end         uint64 // no page has this number or a greater one
	transaction uint64
}

// state reads the page at an offset, which is nil when it was not written to its end.
func (db *DB) state(at int64) *meta {
	raw := make([]byte, headerSize+metaSize)
	if _, err := db.file.ReadAt(raw, at); err != nil {
		return nil
	}
	raw = raw[headerSize:]
	order := binary.LittleEndian
	m := &meta{
		pageSize: int64(order.Uint32(raw[8:])), root: order.Uint64(raw[16:]), end: order.Uint64(raw[40:]),
		transaction: order.Uint64(raw[48:]),
	}
	sum := fnv.New64a()
	_, _ = sum.Write(raw[:56])
	if order.Uint32(raw) != magic || order.Uint32(raw[4:]) != version || order.Uint64(raw[56:]) != sum.Sum64() {
		return nil
	}
	if m.pageSize < leastPageSize || m.pageSize > mostPageSize || m.pageSize&(m.pageSize-1) != 0 {
		return nil
	}
	return m
}

// page reads a page with those that it overflows into.
func (db *DB) page(id uint64) ([]byte, error) {
	damaged := func(why string) error { return fmt.Errorf("page %d is damaged: %s", id, why) }
	if id < 2 || id >= db.end || id > uint64(db.size/db.pageSize) {
		return nil, damaged("it is beyond the end")
	}
	header := make([]byte, headerSize)
	if _, err := db.file.ReadAt(header, int64(id)*db.pageSize); err != nil {
		return nil, damaged("it is cut short")
	}
	if binary.LittleEndian.Uint64(header) != id {
		return nil, damaged("another one is in its place")
	}
	length := (int64(binary.LittleEndian.Uint32(header[12:])) + 1) * db.pageSize
	if length > mostPage || int64(id)*db.pageSize+length > db.size {
		return nil, damaged("it is cut short")
	}
	if db.bytes += length; db.bytes > mostBytes {
		return nil, errors.New("more than 4 GiB were read of it")
	}
	raw := make([]byte, length)
	if _, err := db.file.ReadAt(raw, int64(id)*db.pageSize); err != nil {
		return nil, damaged("it is cut short")
	}
	return raw, nil
}

// Each calls do for each entry in the order of the keys, until it returns an error.
func (b *Bucket) Each(do func(Entry) error) error {
	if b.inline != nil {
		return b.page(b.inline, 0, do)
	}
	return b.walk(b.root, 0, do)
}

func (b *Bucket) walk(id uint64, depth int, do func(Entry) error) error {
	if depth > mostDepth {
		return fmt.Errorf("page %d is damaged: pages lead in a circle", id)
	}
	raw, err := b.db.page(id)
	if err != nil {
		return err
	}
	return b.page(raw, depth, do)
}

// page goes through the entries of a page, and the pages below it.
func (b *Bucket) page(raw []byte, depth int, do func(Entry) error) error {
	if len(raw) < headerSize {
		return errors.New("a small bucket is damaged")
	}
	order := binary.LittleEndian
	flags, count := order.Uint16(raw[8:]), int64(order.Uint16(raw[10:]))
	elements := raw[headerSize:]
	if int64(len(elements)) < count*elementSize {
		return errors.New("a page is damaged: its entries are beyond its end")
	}
	if b.db.elements += count; b.db.elements > mostElements {
		return errors.New("more than 16 million entries were read of it")
	}
	for i := range count {
		e := elements[i*elementSize:]
		var err error
		switch {
		case flags&branchPage != 0 && b.inline == nil:
			err = b.walk(order.Uint64(e[8:]), depth+1, do)
		case flags&leafPage != 0:
			err = b.entry(e, do)
		default:
			err = fmt.Errorf("a page is damaged: %#x is no kind of page", flags)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// entry calls do for one entry of a leaf, at whose beginning e is.
func (b *Bucket) entry(e []byte, do func(Entry) error) error {
	order := binary.LittleEndian
	flags, at := order.Uint32(e), int64(order.Uint32(e[4:]))
	key, value := int64(order.Uint32(e[8:])), int64(order.Uint32(e[12:]))
	if at+key+value > int64(len(e)) {
		return errors.New("a page is damaged: an entry is beyond its end")
	}
	out := Entry{Key: string(e[at : at+key])}
	raw := e[at+key : at+key+value]
	if flags&bucketEntry == 0 {
		out.Value = raw
		return do(out)
	}
	if len(raw) < bucketSize {
		return fmt.Errorf("the bucket %q is damaged", out.Key)
	}
	out.Bucket = &Bucket{db: b.db, root: order.Uint64(raw)}
	if out.Bucket.root == 0 {
		out.Bucket.inline = raw[bucketSize:]
	}
	return do(out)
}

// errFound ends a walk.
var errFound = errors.New("found")

// Bucket finds a bucket by its name; nil when there is none.
func (b *Bucket) Bucket(name string) (*Bucket, error) {
	var found *Bucket
	err := b.Each(func(e Entry) error {
		if e.Key == name && e.Bucket != nil {
			found = e.Bucket
			return errFound
		}
		return nil
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return found, err
}
