package preload

import (
	"errors"
	"io/fs"
	"maps"
	"slices"

	"berth/internal/image"
	"berth/internal/record"
)

var memoryKind = record.Kind{Name: "preload", Version: 1, Oldest: 1}

// memory is what was taken in, as its record has it.
type memory struct {
	Path  string            `json:"path"` // of the directory
	Files map[string]*taken `json:"files"`
}

// identity tells one content of a file from another without reading it. No program can give a changed file the time of
// change that it had; the inode is left out, because some file systems number anew with each mount.
type identity struct {
	Size     int64 `json:"size"`
	Modified int64 `json:"modified"` // in nanoseconds since 1970, as the next
	Changed  int64 `json:"changed"`
}

// taken is what came of one content of a file.
type taken struct {
	identity
	Images  []takenImage    `json:"images,omitempty"`  // of an archive
	Durable bool            `json:"durable,omitempty"` // the disk has them
	Names   []string        `json:"names,omitempty"`   // of a list
	Pulled  map[string]bool `json:"pulled,omitempty"`  // of those
}

// takenImage is an image of an archive.
type takenImage struct {
	ID    string   `json:"id"`
	Names []string `json:"names,omitempty"`
}

// readMemory reads the record of a directory. It returns an empty one, and an error, where it cannot be read.
func readMemory(path, dir string) (*memory, error) {
	m := &memory{}
	_, err := memoryKind.Read(path, m)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil || m.Path != dir || m.Files == nil {
		m = &memory{Path: dir, Files: map[string]*taken{}}
	}
	for name, t := range m.Files {
		if t == nil {
			delete(m.Files, name)
		}
	}
	return m, err
}

// pins are the names of all images, and the ids of those that have no name.
func (m *memory) pins() (names []string) {
	for _, t := range m.Files {
		names = append(names, t.Names...)
		for _, i := range t.Images {
			names = append(names, i.pins()...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// pins are the names of an image, or its id where it has none. One whose names have all gone to another is not wanted
// any more.
func (i takenImage) pins() []string {
	if len(i.Names) > 0 {
		return i.Names
	}
	return []string{i.ID}
}

// lacking reports whether a store has neither the image nor another one that is called as it was.
func (i takenImage) lacking(s Store) bool {
	return !slices.ContainsFunc(append([]string{i.ID}, i.Names...), func(name string) bool {
		_, there := s.Get(name)
		return there
	})
}

// isDurable reports whether the disk has all images of an archive.
func (t *taken) isDurable(s Store) bool {
	return !slices.ContainsFunc(t.Images, func(i takenImage) bool {
		img, there := s.Get(i.ID)
		return there && !img.Durable
	})
}

func imagesOf(all []image.Image) (images []takenImage) {
	for _, i := range all {
		images = append(images, takenImage{i.ID, slices.Concat(i.RepoTags, i.RepoDigests)})
	}
	return images
}

// forgetLost forgets archives of which an image has not been on the disk and is gone: a power cut took it.
func (m *memory) forgetLost(s Store) {
	maps.DeleteFunc(m.Files, func(_ string, t *taken) bool {
		return !t.Durable && slices.ContainsFunc(t.Images, func(i takenImage) bool {
			_, there := s.Get(i.ID)
			return !there
		})
	})
}
