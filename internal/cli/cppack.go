package cli

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// packer writes an archive of a file, or of a directory with all below it, whose first entry is called name. The files
// are root's in the container.
type packer struct {
	archive    *tar.Writer
	from, name string
	// there says that the directory is there already. It has no entry of its own then, by which tar would give it
	// another mode and owner.
	there  bool
	follow bool     // what links lead to is copied in their place
	within []string // the directories that are being copied; more than one where links lead to others

	missed []error // the first of what could not be read, which is not in the archive
	more   int     // how many there are beyond them
}

// mostMissed is how many files that could not be read are told of one by one.
const mostMissed = 10

// pack writes the archive, without what cannot be read: files vanish while a directory is copied that is in use. An
// error means that the archive has no end, so that nobody takes it for a whole one.
func (p *packer) pack() error {
	err := p.walk(p.from, p.name)
	if err == nil {
		_ = p.archive.Close() // all that was to be copied is written: a reader may be content without the end
	}
	return err
}

func (p *packer) miss(err error) {
	if len(p.missed) == mostMissed {
		p.more++
		return
	}
	p.missed = append(p.missed, err)
}

// leftOut is what could not be read; nil where there was no such thing.
func (p *packer) leftOut() error {
	err := errors.Join(p.missed...)
	if p.more > 0 {
		err = fmt.Errorf("%w\nand %d more could not be read", err, p.more)
	}
	return err
}

// walk writes what is at from, whose entry is called name.
func (p *packer) walk(from, name string) error {
	return filepath.Walk(from, func(file string, info os.FileInfo, err error) error {
		if err != nil {
			p.miss(err)
			return nil
		}
		rest, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		at := path.Join(name, filepath.ToSlash(rest))
		if p.follow && info.Mode()&os.ModeSymlink != 0 {
			return p.followed(file, at)
		}
		return p.entry(file, at, info)
	})
}

// followed writes what a link leads to. A directory in which the link itself is being copied would never end.
func (p *packer) followed(link, at string) error {
	real, err := filepath.EvalSymlinks(link)
	if err == nil {
		var here string
		if here, err = filepath.EvalSymlinks(filepath.Dir(link)); err == nil {
			p.within = append(p.within, here)
			defer func() { p.within = p.within[:len(p.within)-1] }()
		}
	}
	if err != nil {
		p.miss(err)
		return nil
	}
	for _, dir := range p.within {
		if dir == real || strings.HasPrefix(dir, strings.TrimSuffix(real, "/")+"/") {
			p.miss(fmt.Errorf("%s leads to a directory above it, %s", link, real))
			return nil
		}
	}
	return p.walk(real, at)
}

func (p *packer) entry(file, at string, info os.FileInfo) error {
	kept := info.IsDir() && at == p.name && p.there
	if kept || info.Mode()&(os.ModeSocket|os.ModeDevice|os.ModeNamedPipe) != 0 {
		return nil
	}
	link := ""
	var err error
	if info.Mode()&os.ModeSymlink != 0 {
		if link, err = os.Readlink(file); err != nil {
			p.miss(err)
			return nil
		}
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = at, 0, 0, "", ""
	if !info.Mode().IsRegular() {
		return p.archive.WriteHeader(h)
	}
	f, err := os.Open(file)
	if err != nil {
		p.miss(err)
		return nil
	}
	defer func() { _ = f.Close() }()
	if err := p.archive.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(p.archive, f, info.Size())
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s became shorter while it was copied", file)
	}
	return err
}
