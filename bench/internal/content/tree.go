// Package content makes images of realistic content for the benchmark of pulls: the programs, libraries, scripts and
// documents that the machine has in /usr, in the proportions of a distribution's image.
package content

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
)

// mostFile is the size of the largest file that goes into a layer, so that layers come out as large as asked.
const mostFile = 8 << 20

// A Tree hands out files in an order that mixes their kinds.
type Tree struct {
	files []string
	next  int
}

// share is how many files of a kind follow each other.
type share struct {
	pattern string
	files   int
}

// shares give about 25 files to a megabyte, as Debian's own images have.
var shares = []share{{"usr/bin", 1}, {"usr/lib/*-linux-*", 2}, {"usr/share", 32}, {"usr/lib/python3*", 8}}

// Open lists the files below root, which is / but in tests.
func Open(root string) (*Tree, error) {
	var kinds [][]string
	for _, s := range shares {
		var list []string
		dirs, _ := filepath.Glob(filepath.Join(root, s.pattern))
		for _, dir := range dirs {
			files, err := walk(dir)
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", dir, err)
			}
			list = append(list, files...)
		}
		kinds = append(kinds, list)
	}
	return &Tree{files: mix(kinds)}, nil
}

func walk(dir string) ([]string, error) {
	var list []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // somebody installs or removes something meanwhile
		}
		if err == nil && (d.Type() == fs.ModeSymlink || d.Type() == 0 && info.Size() <= mostFile) {
			list = append(list, path)
		}
		return err
	})
	return list, err
}

func mix(kinds [][]string) []string {
	var all []string
	for left := true; left; {
		left = false
		for i, list := range kinds {
			n := min(shares[i].files, len(list))
			all, kinds[i] = append(all, list[:n]...), list[n:]
			left = left || n > 0
		}
	}
	return all
}

// Rewind begins anew with the first file.
func (t *Tree) Rewind() { t.next = 0 }

// cut takes the next files, until they have size bytes together.
func (t *Tree) cut(size int64) ([]string, error) {
	first, sum := t.next, int64(0)
	for ; sum < size; t.next++ {
		if t.next == len(t.files) {
			return nil, fmt.Errorf("/usr is too small: a layer of %d MB is wanted, and %d files with %d MB are left",
				size>>20, t.next-first, sum>>20)
		}
		info, err := os.Lstat(t.files[t.next])
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() {
			sum += info.Size()
		}
	}
	return t.files[first:t.next], nil
}

// writeTar writes files with the directories above them, in the order of their names as a builder does.
func writeTar(w io.Writer, files []string) (entries int, err error) {
	names := map[string]bool{}
	for _, f := range files {
		for p := f; p != "/"; p = filepath.Dir(p) {
			names[p] = true
		}
	}
	sorted := make([]string, 0, len(names))
	for p := range names {
		sorted = append(sorted, p)
	}
	sort.Strings(sorted)
	tw := tar.NewWriter(w)
	for _, p := range sorted {
		if err := addFile(tw, p); err != nil {
			return 0, fmt.Errorf("put %s into a layer: %w", p, err)
		}
	}
	return len(sorted), tw.Close()
}

func addFile(tw *tar.Writer, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	h := &tar.Header{
		Name: strings.TrimPrefix(path, "/"), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX,
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
	}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case info.Mode().IsRegular():
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
	default:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(path); err != nil {
			return err
		}
	}
	if err := tw.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.Copy(tw, f)
	return err
}
