package bolt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

// write has bbolt make a file, in several transactions, and returns it.
func write(t testing.TB, pageSize int, steps ...func(*bbolt.Tx) error) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{PageSize: pageSize, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		if err := db.Update(step); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// flat is all of a bucket, with the names of the buckets on the way before each key.
func flat(b *Bucket) (map[string]string, error) {
	out := map[string]string{}
	var walk func(prefix string, b *Bucket) error
	walk = func(prefix string, b *Bucket) error {
		if strings.Count(prefix, "/") > 8 {
			return nil
		}
		return b.Each(func(e Entry) error {
			if e.Bucket != nil {
				out[prefix+e.Key+"/"] = ""
				return walk(prefix+e.Key+"/", e.Bucket)
			}
			out[prefix+e.Key] = string(e.Value)
			return nil
		})
	}
	return out, walk("", b)
}

// TestReadsWhatBboltWrites compares all keys of files of many shapes: small buckets in their entries, trees of many
// pages, values larger than a page, and what later transactions have changed and removed.
func TestReadsWhatBboltWrites(t *testing.T) {
	for _, pageSize := range []int{1024, 4096, 65536} {
		for seed := range uint64(5) {
			random := rand.New(rand.NewPCG(seed, 0))
			want := map[string]string{}
			change := func(tx *bbolt.Tx) error {
				for range random.IntN(4) + 1 {
					outer := fmt.Sprintf("b%d", random.IntN(3))
					b, err := tx.CreateBucketIfNotExists([]byte(outer))
					if err != nil {
						return err
					}
					want[outer+"/"] = ""
					for range random.IntN(300) {
						inner, key := fmt.Sprintf("in%d", random.IntN(5)), fmt.Sprint(random.IntN(2000))
						at, err := b.CreateBucketIfNotExists([]byte(inner))
						if err != nil {
							return err
						}
						want[outer+"/"+inner+"/"] = ""
						if random.IntN(5) == 0 {
							if err := at.Delete([]byte(key)); err != nil {
								return err
							}
							delete(want, outer+"/"+inner+"/"+key)
							continue
						}
						value := bytes.Repeat([]byte{byte('a' + random.IntN(26))}, random.IntN(40))
						if random.IntN(100) == 0 {
							value = bytes.Repeat(value, 900)
						}
						if err := at.Put([]byte(key), value); err != nil {
							return err
						}
						want[outer+"/"+inner+"/"+key] = string(value)
					}
				}
				return nil
			}
			raw := write(t, pageSize, change, change, change)
			db, err := Open(bytes.NewReader(raw), int64(len(raw)))
			if err != nil {
				t.Fatal(err)
			}
			got, err := flat(db.Root())
			if err != nil || !maps.Equal(got, want) {
				t.Errorf("pages of %d bytes, seed %d: %d keys, %v; want %d", pageSize, seed, len(got), err, len(want))
			}
		}
	}
}

// TestBucket finds one by its name, and neither a value nor nothing.
func TestBucket(t *testing.T) {
	raw := write(t, 4096, func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("b"))
		if err != nil {
			return err
		}
		return b.Put([]byte("value"), []byte("v"))
	})
	db, err := Open(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := db.Root().Bucket("b")
	if b == nil || err != nil {
		t.Fatal(b, err)
	}
	for _, name := range []string{"value", "none"} {
		if in, err := b.Bucket(name); in != nil || err != nil {
			t.Errorf("%s: %v, %v", name, in, err)
		}
	}
}

// TestTheOlderState is read where the newest one was not written to its end.
func TestTheOlderState(t *testing.T) {
	raw := write(t, 4096, func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("old")); return err },
		func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("new")); return err })
	newest := 0
	if binary.LittleEndian.Uint64(raw[headerSize+48:]) < binary.LittleEndian.Uint64(raw[4096+headerSize+48:]) {
		newest = 4096
	}
	for i, want := range []string{"new", "old"} {
		if i == 1 {
			raw[newest+headerSize+56] ^= 1
		}
		db, err := Open(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := flat(db.Root())
		if _, ok := got[want+"/"]; !ok || err != nil || len(got) != 2-i {
			t.Errorf("%v, %v; want %s", got, err, want)
		}
	}
}

// tree is a file whose buckets have several pages.
func tree(t testing.TB) []byte {
	return write(t, 4096, func(tx *bbolt.Tx) error {
		for i := range 3 {
			b, err := tx.CreateBucket(fmt.Append(nil, "bucket", i))
			if err != nil {
				return err
			}
			for n := range 400 {
				if err := b.Put(fmt.Append(nil, "key", n), bytes.Repeat([]byte("v"), 60)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// TestCircle has a page lead to itself. bbolt's own cursor never returns from such a file.
func TestCircle(t *testing.T) {
	raw := tree(t)
	found := false
	for at := 2 * 4096; at < len(raw); at += 4096 {
		if binary.LittleEndian.Uint16(raw[at+8:]) != branchPage {
			continue
		}
		found = true
		binary.LittleEndian.PutUint64(raw[at+headerSize+8:], uint64(at/4096))
	}
	if !found {
		t.Fatal("no page leads to others")
	}
	db, err := Open(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := flat(db.Root()); err == nil || !strings.Contains(err.Error(), "in a circle") {
		t.Errorf("%v", err)
	}
}

// TestCutShort reads the file at every length: with an error, but for whole ones.
func TestCutShort(t *testing.T) {
	raw := tree(t)
	for n := 0; n < len(raw); n += 512 {
		db, err := Open(bytes.NewReader(raw[:n]), int64(n))
		if err == nil {
			_, err = flat(db.Root())
		}
		if err == nil && n < len(raw)/2 {
			t.Errorf("%d of %d bytes are taken", n, len(raw))
		}
	}
}

// FuzzRead changes a file. Whatever is in it, reading ends.
func FuzzRead(f *testing.F) {
	raw := tree(f)
	f.Add([]byte{}, 0)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, 2*4096+8)
	for at := 2 * 4096; at < len(raw); at += 4096 {
		f.Add(raw[at:at+64], at+4096)
	}
	f.Fuzz(func(t *testing.T, change []byte, at int) {
		file := bytes.Clone(raw)
		if at < 0 || at >= len(file) {
			at = 2 * 4096
		}
		copy(file[at:], change)
		db, err := Open(bytes.NewReader(file), int64(len(file)))
		if err == nil {
			_, _ = flat(db.Root())
		}
	})
}
