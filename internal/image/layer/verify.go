package layer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Verify compares the layer in dir with its manifest and reports each path that differs, and how. The error says that
// the comparison itself was not possible: the manifest is missing or damaged, or ctx ended.
func Verify(ctx context.Context, dir string, report func(path, problem string)) error {
	man, err := readManifest(filepath.Join(dir, ManifestFile))
	if err != nil {
		return err
	}
	if err := verifySkeleton(dir, man, report); err != nil {
		return err
	}
	root := filepath.Join(dir, FS)
	for _, p := range man.paths() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if problem := man.differs(root, man[p]); problem != "" {
			report(p, problem)
		}
	}
	return filepath.WalkDir(root, func(full string, _ iofs.DirEntry, err error) error {
		if err != nil {
			report(full, err.Error())
			return nil
		}
		rel, _ := filepath.Rel(root, full)
		if _, ok := man[rel]; !ok {
			report(rel, "is in no manifest")
		}
		return ctx.Err()
	})
}

// verifySkeleton compares the skeleton with the manifest. A layer of an earlier release has none.
func verifySkeleton(dir string, man manifest, report func(path, problem string)) error {
	t, err := OpenTar(dir)
	if errors.Is(err, ErrNoSkeleton) {
		return nil
	}
	if err == nil {
		err = t.prove(man, report)
	}
	if err != nil {
		report(SkeletonFile, err.Error())
	}
	return nil
}

// differs says how what is on disk differs from the entry; "" when it does not.
func (m manifest) differs(root string, e entry) string {
	full := filepath.Join(root, e.Path)
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); errors.Is(err, unix.ENOENT) {
		return "is missing"
	} else if err != nil {
		return err.Error()
	}
	if e.Type == typeLink {
		return linkDiffers(root, e, &st)
	}
	if got := typeOf(&st); got != e.Type {
		return fmt.Sprintf("is of type %s, not %s", got, e.Type)
	}
	if e.Type == typeWhiteout {
		return ""
	}
	if d := statDiffers(e, &st); d != "" {
		return d
	}
	if d := xattrsDiffer(full, e); d != "" {
		return d
	}
	return contentDiffers(full, e)
}

func linkDiffers(root string, e entry, st *unix.Stat_t) string {
	var target unix.Stat_t
	if err := unix.Lstat(filepath.Join(root, e.Link), &target); err != nil || target.Ino != st.Ino {
		return "is no longer the same file as " + e.Link
	}
	return ""
}

func statDiffers(e entry, st *unix.Stat_t) string {
	switch {
	case int(st.Uid) != e.UID || int(st.Gid) != e.GID:
		return fmt.Sprintf("belongs to %d:%d, not %d:%d", st.Uid, st.Gid, e.UID, e.GID)
	case e.Type != typeSymlink && st.Mode&0o7777 != e.Mode:
		return fmt.Sprintf("has mode %#o, not %#o", st.Mode&0o7777, e.Mode)
	case e.Type == typeFile && st.Size != e.Size:
		return fmt.Sprintf("has %d bytes, not %d", st.Size, e.Size)
	case (e.Type == typeChar || e.Type == typeBlock) && st.Rdev != e.Dev:
		return fmt.Sprintf("is device %#x, not %#x", st.Rdev, e.Dev)
	case !sameTime(e.Mtime, st.Mtim.Nano()):
		return "has another modification time"
	}
	return ""
}

func xattrsDiffer(full string, e entry) string {
	if e.Opaque {
		if v, err := lgetxattr(full, "trusted.overlay.opaque"); err != nil || string(v) != "y" {
			return "is no longer opaque"
		}
	}
	for name, want := range e.Xattrs {
		if got, err := lgetxattr(full, name); err != nil || !bytes.Equal(got, want) {
			return "has another value of " + name
		}
	}
	return ""
}

func contentDiffers(full string, e entry) string {
	switch e.Type {
	case typeSymlink:
		if got, err := os.Readlink(full); err != nil || got != e.Link {
			return fmt.Sprintf("points to %q, not %q", got, e.Link)
		}
	case typeFile:
		got, err := hashFile(full)
		if err != nil {
			return err.Error()
		}
		if got != e.Hash {
			return "has other content"
		}
	}
	return ""
}

func hashFile(full string) (string, error) {
	f, err := os.OpenFile(full, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func typeOf(st *unix.Stat_t) string {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return typeDir
	case unix.S_IFREG:
		return typeFile
	case unix.S_IFLNK:
		return typeSymlink
	case unix.S_IFBLK:
		return typeBlock
	case unix.S_IFIFO:
		return typeFifo
	case unix.S_IFCHR:
		if st.Rdev == 0 {
			return typeWhiteout
		}
		return typeChar
	}
	return "?"
}

func lgetxattr(full, name string) ([]byte, error) {
	buf := make([]byte, 256)
	for {
		n, err := unix.Lgetxattr(full, name, buf)
		if errors.Is(err, unix.ERANGE) && len(buf) < 128<<10 {
			buf = make([]byte, 2*len(buf))
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
}

// recount settles a manifest in which an entry replaced another: links are looked at and sizes counted again.
func (u *unpacker) recount(dir string) error {
	man, err := readManifest(filepath.Join(dir, ManifestFile))
	if err != nil {
		return err
	}
	if err := man.reunite(filepath.Join(dir, FS)); err != nil {
		return err
	}
	u.res.Bytes, u.res.Inodes = man.usage()
	return man.write(dir)
}
