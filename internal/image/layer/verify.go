package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/fail"
)

// Verify compares the layer in dir with its manifest, and calls report for each path that differs. It returns an error
// when it cannot compare: the manifest is missing or damaged, or ctx has ended.
func Verify(ctx context.Context, dir string, report func(path, problem string)) error {
	name := filepath.Join(dir, ManifestFile)
	man, err := list(ctx, name)
	if err != nil {
		return err
	}
	if err := verifyTarSplit(dir, man, report); err != nil {
		return err
	}
	root, err := unix.Open(filepath.Join(dir, FS), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	err = eachLine(ctx, name, func(line int64, e entry) error {
		if !man.holds(line, e) {
			return nil
		}
		problem, err := differs(ctx, root, e)
		if problem != "" {
			report(e.Path, problem)
		}
		return err
	})
	if err != nil {
		return err
	}
	return eachPath(ctx, root, ".", func(p string, err error) {
		if err != nil {
			report(p, err.Error())
		} else if !man.has(p) {
			report(p, "is in no manifest")
		}
	})
}

// eachPath calls do for a directory and everything in it. For what cannot be read it calls do with the error.
func eachPath(ctx context.Context, dirfd int, p string, do func(p string, err error)) error {
	do(p, nil)
	err := eachName(ctx, dirfd, filepath.Base(p), func(in int, name string) error {
		var st unix.Stat_t
		err := unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return eachPath(ctx, in, join(p, name), do)
		}
		do(join(p, name), err)
		return nil
	})
	if err != nil && ctx.Err() == nil && !fail.Lacking(err) {
		do(p, err)
		return nil
	}
	return err
}

// verifyTarSplit compares the tar-split metadata with the manifest. A layer of an earlier release may have none.
func verifyTarSplit(dir string, man *listing, report func(path, problem string)) error {
	t, err := OpenTar(dir)
	if errors.Is(err, ErrNoTarSplit) {
		return nil
	}
	if err == nil {
		err = t.prove(man, report)
	}
	if err != nil {
		report(TarSplitFile, err.Error())
	}
	return nil
}

// differs describes how the file on the disk differs from the entry, "" if it does not. It returns an error only when
// ctx has ended, or when the daemon lacks something, which says nothing of the file.
func differs(ctx context.Context, root int, e entry) (string, error) {
	at, err := openSpot(root, e.Path)
	if fail.Lacking(err) {
		return "", err
	}
	if err != nil {
		return "cannot be reached: " + err.Error(), nil
	}
	defer at.close()
	var st unix.Stat_t
	if err := unix.Fstatat(at.fd, at.base, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return "is missing", nil
	} else if err != nil {
		return err.Error(), nil
	}
	if e.Type == typeLink {
		return linkDiffers(root, e, &st), nil
	}
	if got := typeOf(&st); got != e.Type {
		return fmt.Sprintf("is of type %s, not %s", got, e.Type), nil
	}
	if e.Type == typeWhiteout {
		return "", nil
	}
	if d := statDiffers(e, &st); d != "" {
		return d, nil
	}
	if d := xattrsDiffer(at.host(), e); d != "" {
		return d, nil
	}
	return contentDiffers(ctx, at, e)
}

func linkDiffers(root int, e entry, st *unix.Stat_t) string {
	var target unix.Stat_t
	if err := unix.Fstatat(root, e.Link, &target, unix.AT_SYMLINK_NOFOLLOW); err != nil || target.Ino != st.Ino {
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

func contentDiffers(ctx context.Context, at spot, e entry) (string, error) {
	switch e.Type {
	case typeSymlink:
		if got, err := readlinkat(at.fd, at.base); err != nil || got != e.Link {
			return fmt.Sprintf("points to %q, not %q", got, e.Link), nil
		}
	case typeFile:
		got, err := hashFile(ctx, at)
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if fail.Lacking(err) {
			return "", err
		}
		if err != nil {
			return err.Error(), nil
		}
		if got != e.Hash {
			return "has other content", nil
		}
	}
	return "", nil
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
	return typeUnknown
}

func lgetxattr(full, name string) ([]byte, error) {
	return readXattr(func(buf []byte) (int, error) { return unix.Lgetxattr(full, name, buf) })
}

// readXattr reads an attribute by a function that returns ERANGE if it does not fit.
func readXattr(get func(buf []byte) (int, error)) ([]byte, error) {
	buf := make([]byte, 256)
	for {
		n, err := get(buf)
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
