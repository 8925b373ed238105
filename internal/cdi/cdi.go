// Package cdi adds devices that are described by the Container Device Interface to the spec of a container.
//
// The descriptions are read anew for each container that asks for such a device, so a file that a driver wrote just
// before counts, and a node without such devices pays nothing: nothing is watched and nothing is kept.
package cdi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"berth/internal/annotation"
	"berth/internal/limit"
	"berth/internal/look"
)

// Devices finds devices in the files of directories.
type Devices struct {
	Dirs []string // the last one wins where two describe the same device
	Log  *slog.Logger

	reading func() // called before a read, in tests
}

// UnknownError says that no file describes some devices.
type UnknownError struct {
	Names    []string
	Dirs     []string
	Unusable error // of files that could not be used, perhaps the ones that were meant
}

func (e *UnknownError) Error() string {
	text := fmt.Sprintf("CDI device %s: no file in %s describes it", strings.Join(e.Names, ", "),
		strings.Join(e.Dirs, ", "))
	if e.Unusable != nil {
		text += "; and not all files there can be used: " + e.Unusable.Error()
	}
	return text
}

// Is makes it a kind of what is not found.
func (e *UnknownError) Is(kind error) bool { return kind == errdefs.ErrNotFound }

// Names are the devices that a container asks for: those of the request, and those of annotations as device plugins had
// to use before. Each comes once.
func Names(asked []string, annotations map[string]string) ([]string, error) {
	names := append(slices.Clone(asked), annotation.Devices(annotations)...)
	if err := limit.CDIDevices.Check(int64(len(names))); err != nil {
		return nil, err
	}
	var out []string
	seen := map[string]bool{}
	for _, name := range names {
		if _, _, _, err := parser.ParseQualifiedName(name); err != nil {
			return nil, fmt.Errorf("CDI device %q: a name is vendor/class=device: %w", name, err)
		}
		if !seen[name] {
			out, seen[name] = append(out, name), true
		}
	}
	return out, nil
}

// Inject changes the spec as the descriptions of the devices say. It changes nothing when one of them is not described,
// or when ctx ends before they are read.
func (d *Devices) Inject(ctx context.Context, sp *specs.Spec, names []string) error {
	if len(names) == 0 {
		return nil
	}
	cache, err := d.read(ctx)
	if err != nil {
		return fmt.Errorf("read the descriptions of CDI devices in %s: %w", strings.Join(d.Dirs, ", "), err)
	}
	unusable := unusable(cache)
	unknown, err := cache.InjectDevices(sp, names...)
	switch {
	case len(unknown) > 0:
		return &UnknownError{Names: unknown, Dirs: d.Dirs, Unusable: unusable}
	case err != nil:
		return fmt.Errorf("CDI devices %s: %w", strings.Join(names, ", "), err)
	}
	if unusable != nil {
		d.Log.Warn("some descriptions of CDI devices cannot be used", "error", unusable)
	}
	return nil
}

// descriptions is where they are. A directory may be on a file system that hangs.
var descriptions = look.NewDisk()

// read reads all descriptions.
func (d *Devices) read(ctx context.Context) (*cdi.Cache, error) {
	return look.Within(ctx, descriptions, func() (*cdi.Cache, error) {
		if d.reading != nil {
			d.reading()
		}
		if err := d.check(); err != nil {
			return nil, err
		}
		return cdi.NewCache(cdi.WithSpecDirs(d.Dirs...), cdi.WithAutoRefresh(false))
	})
}

// check refuses what the library must not open. It opens all files of the directories, and would wait for the writer of
// a FIFO for ever, and with it all who ask for a device afterwards.
func (d *Devices) check() error {
	description := func(e os.DirEntry) bool {
		ext := filepath.Ext(e.Name())
		return ext == ".json" || ext == ".yaml"
	}
	var errs []error
	for _, dir := range d.Dirs {
		errs = append(errs, limit.CheckFiles(dir, description, limit.LibraryFile))
	}
	return errors.Join(errs...)
}

// unusable is what is wrong with files, each with its name.
func unusable(cache *cdi.Cache) error {
	all := cache.GetErrors()
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(all)) {
		errs = append(errs, fmt.Errorf("%s: %w", path, errors.Join(all[path]...)))
	}
	return errors.Join(errs...)
}
