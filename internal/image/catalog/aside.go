package catalog

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// AsideDir holds the trees of layers that were replaced by sound ones. A container may have such a tree mounted, and
// lives on with it; a sweep removes it when no container uses the layer.
const AsideDir = "aside"

// newAside takes a name in aside/ for a tree of the layer.
func (d *Disk) newAside(id string) (string, error) {
	err := os.Mkdir(d.Path(AsideDir), 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return d.Path(AsideDir, id+"."+strconv.FormatUint(d.ingests.Add(1), 10)+"-"+d.session), nil
}

// keepAside moves the tree of a layer out of its place, for containers that have it mounted.
func keepAside(d *Disk, id string) error {
	aside, err := d.newAside(id)
	if err != nil {
		return err
	}
	return os.Rename(d.LayerDir(id), aside)
}

// exchange puts the directory dir into the place of a layer, and the tree that is there aside, at one moment: who
// mounts the layer finds the one or the other. When the old tree was removed by hand, nothing is put aside.
func exchange(d *Disk, dir, id string) error {
	aside, err := d.newAside(id)
	if err != nil {
		return err
	}
	if err := At("repair.aside", func() error { return os.Rename(dir, aside) }); err != nil {
		return err
	}
	final := d.LayerDir(id)
	err = At("repair.swap", func() error {
		return unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, final, unix.RENAME_EXCHANGE)
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(aside, final)
	}
	if err != nil {
		err = &os.LinkError{Op: "exchange", Old: aside, New: final, Err: err}
		return errors.Join(err, os.RemoveAll(aside))
	}
	return nil
}

// sweepAside removes the trees that no container can have mounted: no container uses the layer, and no caller has held
// it in the epoch.
func (s *Sweeper) sweepAside(epoch uint64, inUse map[string]struct{}, whole bool) error {
	entries, err := os.ReadDir(s.Catalog.disk.Path(AsideDir))
	if err != nil || !whole {
		return notMissing(err)
	}
	for _, e := range entries {
		id, _, _ := strings.Cut(e.Name(), ".")
		if _, used := inUse[id]; used || !s.Catalog.Leases.idle(id, epoch) {
			continue
		}
		tree := s.Catalog.disk.Path(AsideDir, e.Name())
		err = errors.Join(err, At("remove.aside", func() error { return os.RemoveAll(tree) }))
	}
	return err
}

func notMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
