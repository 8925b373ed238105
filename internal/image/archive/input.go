package archive

import (
	"fmt"
	"io"
	"os"
)

// input is an archive as its client sends it.
type input struct {
	r      io.Reader
	place  Place
	file   *os.File // has the rest of the archive once makeWhole was called
	failed error    // of makeWhole
}

func (i *input) Read(p []byte) (int, error) { return i.r.Read(p) }

// makeWhole copies the rest of the archive into an unnamed file, from which it is read from then on. An archive with a
// large zstd window is read like that, because all layers share the memory for such windows: an archive that held it
// while its client sends nothing would keep them from being unpacked.
func (i *input) makeWhole() error {
	if i.file == nil && i.failed == nil {
		i.failed = i.spool()
	}
	return i.failed
}

func (i *input) spool() (err error) {
	if i.file, err = os.CreateTemp(i.place.Dir, "archive-"); err != nil {
		return err
	}
	if err := os.Remove(i.file.Name()); err != nil {
		return err
	}
	most := i.place.Bytes.Limit
	n, err := io.Copy(io.MultiWriter(i.place.Disk, i.file), io.LimitReader(i.r, most+1))
	if err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	if n > most {
		return i.place.Bytes.Exceeded()
	}
	i.r = i.file
	_, err = i.file.Seek(0, io.SeekStart)
	return err
}

func (i *input) close() {
	if i.file != nil {
		_ = i.file.Close()
	}
}
