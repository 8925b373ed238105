package layer

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// create makes the file or directory that the header describes. Its name is base, in the open parent.
func (u *unpacker) create(h *tar.Header, base string, r io.Reader) error {
	if len(u.res.links) > 0 {
		delete(u.res.links[u.parent.id], base)
	}
	if h.Typeflag == tar.TypeDir {
		return u.directory(h, base)
	}
	full := join(u.parent.name, base)
	if err := limit.LayerPath.Check(int64(len(full))); err != nil {
		return err
	}
	e := describeEntry(h, full)
	put, err := u.maker(h, base, r, &e)
	if err != nil {
		return err
	}
	if e.Type != typeLink {
		if err := u.countInode(h.Size); err != nil {
			return err
		}
	}
	err = put()
	if errors.Is(err, unix.EEXIST) {
		if err = u.clear(base, full); err == nil {
			err = put()
		}
	}
	var far *farLinkError
	if errors.As(err, &far) {
		return u.linkLater(base, full, far.target)
	}
	if err != nil {
		return err
	}
	u.res.Bytes += blocks(e)
	return u.man.add(e)
}

// linkLater leaves a hard link to Finalize. It removes what has the name now, so that the name is free then.
func (u *unpacker) linkLater(base, full, target string) error {
	var st unix.Stat_t
	err := unix.Fstatat(u.parent.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		err = u.clear(base, full)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	// Both paths are charged twice: Finalize holds each in full once more, to sort the links by name.
	if err := u.res.memory.take(int64(len(full)+len(base)+2*len(target)) + 4*nodeCost); err != nil {
		return err
	}
	in := u.res.links[u.parent.id]
	if in == nil {
		in = map[string]string{}
		u.res.links[u.parent.id] = in
	}
	in[strings.Clone(base)] = strings.Clone(target)
	return nil
}

// maker returns a function that makes the entry. The caller may call it again after it has freed a name that was taken.
func (u *unpacker) maker(h *tar.Header, base string, r io.Reader, e *entry) (func() error, error) {
	fd := u.parent.fd
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		e.Type = typeFile
		return func() error { return u.file(h, base, r, e) }, nil
	case tar.TypeLink:
		target, err := inside(h.Linkname)
		if err != nil {
			return nil, &HostileError{h.Name, fmt.Sprintf("is a hard link to %q, which leads out of the layer", h.Linkname)}
		}
		e.Type = typeLink
		return func() error { return u.link(target, base, e) }, nil
	case tar.TypeSymlink:
		if h.Linkname == "" {
			return nil, &HostileError{h.Name, "is a symlink to nothing"}
		}
		e.Type, e.Link = typeSymlink, h.Linkname
		return u.node(base, h, e, func() error { return unix.Symlinkat(h.Linkname, fd, base) }), nil
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return u.device(h, base, e), nil
	}
	return nil, &HostileError{h.Name, fmt.Sprintf("has the unknown type %q", string(h.Typeflag))}
}

func (u *unpacker) device(h *tar.Header, base string, e *entry) func() error {
	kind := uint32(unix.S_IFIFO)
	e.Type = typeFifo
	switch h.Typeflag {
	case tar.TypeChar:
		kind, e.Type = unix.S_IFCHR, typeChar
	case tar.TypeBlock:
		kind, e.Type = unix.S_IFBLK, typeBlock
	}
	if e.Type != typeFifo {
		e.Dev = unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))
	}
	fd := u.parent.fd
	make := func() error { return unix.Mknodat(fd, base, kind|e.Mode&0o777, int(e.Dev)) }
	if e.Type == typeChar && e.Dev != 0 || e.Type == typeBlock {
		make = func() error { return u.grants.device(spot{fd, base}, e.Path, *e, u.man.lines+1) }
	}
	if e.Type == typeChar && e.Dev == 0 {
		// The overlay takes a device 0:0 for a whiteout, and so do tools that pack an upper directory.
		*e = entry{Path: e.Path, Type: typeWhiteout}
		u.dirs.at(u.parent.id).flags |= dirHiding
		return make
	}
	return u.node(base, h, e, make)
}

// node returns a function that makes a file without content by put, and sets its metadata.
func (u *unpacker) node(base string, h *tar.Header, e *entry, put func() error) func() error {
	return func() error {
		if err := put(); err != nil {
			return err
		}
		return u.applyMetadata(target{u.parent.fd, base}, h, e)
	}
}

// file writes the content and the metadata of a regular file.
func (u *unpacker) file(h *tar.Header, base string, r io.Reader, e *entry) error {
	const flags = unix.O_CREAT | unix.O_EXCL | unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(u.parent.fd, base, flags, e.Mode&0o777)
	if err != nil {
		return err
	}
	err = u.fill(fd, h, r, e)
	if err == nil {
		err = u.applyMetadata(target{fd: fd}, h, e)
	}
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	return err
}

// fill copies the content of an entry into the new file.
func (u *unpacker) fill(fd int, h *tar.Header, r io.Reader, e *entry) error {
	sparse := isSparse(h)
	if !sparse { // the tar holds a sparse file in another form, so its bytes are kept in the tar-split metadata
		u.tar.begin()
	}
	var err error
	if e.Hash, e.Size, err = u.content(fd, r, sparse); err != nil || sparse {
		return err
	}
	return u.tar.end(e.Path, e.Size)
}

// content copies r into a file. Where the archive marks the file as sparse, blocks of zeros become holes.
func (u *unpacker) content(fd int, r io.Reader, sparse bool) (string, int64, error) {
	total := int64(0)
	u.hash.Reset()
	for {
		n, err := r.Read(u.buf)
		u.hash.Write(u.buf[:n])
		if n > 0 && !(sparse && allZero(u.buf[:n])) {
			if werr := writeAt(fd, u.buf[:n], total); werr != nil {
				return "", 0, werr
			}
		}
		total += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", 0, fmt.Errorf("read layer tar: %w", err)
		}
		if err := u.ctx.Err(); err != nil { // the tar reader makes holes up itself, without a Read that looks at ctx
			return "", 0, err
		}
	}
	if sparse {
		if err := unix.Ftruncate(fd, total); err != nil {
			return "", 0, err
		}
	}
	var sum [sha256.Size]byte
	return hex.EncodeToString(u.hash.Sum(sum[:0])), total, nil
}
