package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/volume"
)

// sectorsWritten is how much the device below a path was given so far, in sectors of 512 bytes.
func sectorsWritten(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	stat, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Dev), unix.Minor(st.Dev)))
	must(t, err)
	written, err := strconv.ParseInt(strings.Fields(string(stat))[6], 10, 64)
	must(t, err)
	return written
}

// TestUnmountWaitsForNobodysData has another program write to the file system of the writable layers. The unmount of a
// root must not wait until that is on the disk.
func TestUnmountWaitsForNobodysData(t *testing.T) {
	base := reachable(t)
	disk := filepath.Join(base, "disk")
	must(t, os.Mkdir(disk, 0o755))
	volume.Mounted(t, disk, volume.Ext4, 300)
	const theirs = 64 << 20
	o := Options{Lower: layers(t, base, 2)}
	for _, ids := range []IDMap{{}, testUserns(t)} {
		o.IDs = ids
		dir, at := filepath.Join(disk, "c", filepath.Base(ids.UserNS)), filepath.Join(base, "rootfs")
		must(t, Prepare(dir, at, o))
		must(t, unix.Syncfs(descriptor(t, disk)))
		must(t, os.WriteFile(filepath.Join(disk, "theirs"), make([]byte, theirs), 0o644))
		before := sectorsWritten(t, disk)
		must(t, Unmount(at))
		if written := (sectorsWritten(t, disk) - before) << 9; written > theirs/4 {
			t.Errorf("an unmount with %+v had %d bytes written to the disk", ids, written)
		}
		must(t, os.Remove(filepath.Join(disk, "theirs")))
	}
}

func descriptor(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}
