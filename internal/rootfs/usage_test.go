package rootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// nest makes directories in each other below dir, and calls do with a descriptor of each and its depth, from 1 on.
func nest(t *testing.T, dir string, depth int, do func(fd, level int)) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	for level := 1; level <= depth; level++ {
		must(t, unix.Mkdirat(at, "d", 0o755))
		next, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
		do(at, level)
	}
	must(t, unix.Close(at))
}

// openFiles is how many descriptors the test has.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(list)
}

// TestUsageHidesNothingInDepth nests directories three thousand deep, with files beside them on the way down that a
// walk finds on its way back up. It holds few of them open.
func TestUsageHidesNothingInDepth(t *testing.T) {
	const depth, files, size = 3000, 30, 8192
	up := filepath.Join(t.TempDir(), "upper")
	must(t, os.Mkdir(up, 0o755))
	t.Cleanup(func() { must(t, Remove(up)) })
	nest(t, up, depth, func(fd, level int) {
		if level%(depth/files) != 0 {
			return
		}
		// Many more names than are read at once, on both sides of the directory.
		for i := range 300 {
			name := fmt.Sprintf("%c-%d-%s", 'a'+i%26, i, strings.Repeat("n", 50))
			f, err := unix.Openat(fd, name, unix.O_CREAT|unix.O_WRONLY, 0o644)
			must(t, err)
			if i == 150 {
				_, err = unix.Write(f, make([]byte, size))
				must(t, err)
			}
			must(t, unix.Close(f))
		}
	})
	before := openFiles(t)
	bytes, inodes, err := Usage(t.Context(), up, 0)
	if want := uint64(1 + depth + files*300); err != nil || inodes != want {
		t.Errorf("%d inodes, %v; wanted %d", inodes, err, want)
	}
	if bytes < files*size {
		t.Errorf("%d bytes, wanted %d at least", bytes, files*size)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestUsageHoldsFewDirectoriesOpen walks with fewer descriptors than there are levels.
func TestUsageHoldsFewDirectoriesOpen(t *testing.T) {
	up := filepath.Join(t.TempDir(), "upper")
	must(t, os.Mkdir(up, 0o755))
	t.Cleanup(func() { must(t, Remove(up)) })
	nest(t, up, 500, func(int, int) {})
	w := &walk{ctx: t.Context(), seen: map[uint64]struct{}{}}
	fd, err := unix.Open(up, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	w.enter(fd, st.Ino)
	most := 0
	for len(w.frames) > 0 {
		open := 0
		for _, f := range w.frames {
			if f.open != nil {
				open++
			}
		}
		most = max(most, open)
		if name, more := w.nextEntry(); more {
			w.entry(name)
		} else {
			w.leave()
		}
	}
	if most > topFrames+lastFrames || w.inodes != 500 || w.missed != nil {
		t.Errorf("%d open at once, %d inodes, %v", most, w.inodes, w.missed)
	}
}

// TestUsageOfMovedDirectories moves a directory away while the walk is deep in it: the walk goes on in what is left,
// and says that it has not seen all.
func TestUsageOfMovedDirectories(t *testing.T) {
	base := t.TempDir()
	up := filepath.Join(base, "upper")
	must(t, os.Mkdir(up, 0o755))
	t.Cleanup(func() { must(t, Remove(up)) })
	nest(t, up, 200, func(int, int) {})
	write(t, up+"/z-beside", "1")
	elsewhere := strings.Repeat("d/", 20) + "moved"
	w := &walk{ctx: t.Context(), seen: map[uint64]struct{}{}}
	fd, err := unix.Open(up, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	w.enter(fd, st.Ino)
	beside := false
	for len(w.frames) > 0 {
		name, more := w.nextEntry()
		if !more {
			w.leave()
			continue
		}
		beside = beside || name == "z-beside"
		w.entry(name)
		if len(w.frames) == 180 { // level 100 is closed: its way up leads to level 20 from now on
			must(t, os.Rename(up+"/"+strings.Repeat("d/", 100)+"d", up+"/"+elsewhere))
		}
	}
	if w.missed == nil || !beside {
		t.Errorf("missed %v; the file beside the directories was found: %v", w.missed, beside)
	}
	w.close()
}

// TestUsageGoesOnPastTheUnreadable has a directory that cannot be read among others, and a walk without powers.
func TestUsageGoesOnPastTheUnreadable(t *testing.T) {
	up := t.TempDir()
	must(t, os.MkdirAll(up+"/a/hidden", 0o755))
	must(t, os.Mkdir(up+"/b", 0o755))
	write(t, up+"/b/file", "1")
	w := &walk{ctx: context.Background(), seen: map[uint64]struct{}{}}
	for _, name := range []string{"a", "b"} {
		fd, err := unix.Open(up+"/"+name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		if name == "a" { // reading it fails, as on a damaged disk
			must(t, unix.Close(fd))
			fd, err = unix.Open(up+"/"+name, unix.O_PATH|unix.O_DIRECTORY, 0)
			must(t, err)
		}
		w.enter(fd, 0)
		must(t, w.run())
	}
	if !errors.Is(w.missed, unix.EBADF) || w.inodes != 1 {
		t.Errorf("missed %v, %d inodes", w.missed, w.inodes)
	}
}

// TestUsageOfManyLinks has more files with several names than a walk tells apart: each name counts its share.
func TestUsageOfManyLinks(t *testing.T) {
	w := &walk{seen: map[uint64]struct{}{}}
	const files = mostLinks + 1000
	for range 3 {
		for ino := range uint64(files) {
			w.count(&unix.Stat_t{Ino: ino, Nlink: 3, Blocks: 8, Mode: unix.S_IFREG})
		}
	}
	if bytes, inodes := w.total(); bytes != files*4096 || inodes != files {
		t.Errorf("%d bytes and %d inodes of %d files", bytes, inodes, files)
	}
	if len(w.seen) > mostLinks {
		t.Errorf("%d inodes are remembered", len(w.seen))
	}
}
