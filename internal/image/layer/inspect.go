package layer

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Inspect refuses a layer directory that has anything but what a layer has, or has it as something else, such as a
// symlink in the place of the tree: whoever wrote it may have been led astray, and others open these names.
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
