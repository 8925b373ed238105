package layer

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Inspect refuses a layer directory with a name that no layer has, or with a name of another file type, such as a
// symlink in place of the tree. The unpacker that wrote it may have been subverted by an image, and the daemon opens
// these names.
func Inspect(dir string) error {
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	kinds := map[string]uint32{
		FS: unix.S_IFDIR, ReplacedDir: unix.S_IFDIR, ManifestFile: unix.S_IFREG, TarSplitFile: unix.S_IFREG,
		GrantsFile: unix.S_IFREG, ResultFile: unix.S_IFREG,
	}
	found := map[string]bool{}
	for _, e := range names {
		var st unix.Stat_t
		if err := unix.Lstat(dir+"/"+e.Name(), &st); err != nil {
			return err
		}
		if kind, known := kinds[e.Name()]; !known || st.Mode&unix.S_IFMT != kind || kind == unix.S_IFREG && st.Nlink != 1 {
			return &HostileError{begin(e.Name()), "is what no layer has beside its tree"}
		}
		found[e.Name()] = true
	}
	for _, name := range []string{FS, ManifestFile, TarSplitFile} {
		if !found[name] {
			return fmt.Errorf("the layer has no %s", name)
		}
	}
	return nil
}
