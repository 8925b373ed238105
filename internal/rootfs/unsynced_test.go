package rootfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// TestErrorOfSomebodysWrite has a write of another program fail after its call has returned: the device below the file
// system was full for a while. Roots can be made there all the same.
func TestErrorOfSomebodysWrite(t *testing.T) {
	base := reachable(t)
	device, disk := filepath.Join(base, "device"), filepath.Join(base, "disk")
	must(t, MakeTmpfs(device, Tmpfs{Size: 24 << 20, Mode: 0o700}))
	defer func() { must(t, UnmakeTmpfs(device)) }()
	must(t, os.Mkdir(disk, 0o755))
	image := filepath.Join(device, "image")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 100<<20))
	for _, args := range [][]string{
		{"mkfs.ext4", "-q", "-O", "^has_journal", image}, {"mount", "-o", "loop", image, disk},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	defer func() { must(t, unix.Unmount(disk, 0)) }()
	lower := layers(t, base, 2)
	for i, ids := range []IDMap{{}, testUserns(t)} {
		for _, single := range []bool{true, false} {
			was := oneByOne
			if !single {
				oneByOne = func() bool { return false }
			}
			must(t, hearOfErrors(disk))
			theirs := filepath.Join(disk, "theirs")
			must(t, os.WriteFile(theirs, bytes.Repeat([]byte("x"), 40<<20), 0o644))
			unix.Sync() // nobody hears of the error by that
			must(t, os.Remove(theirs))
			dir, at := filepath.Join(disk, fmt.Sprint("c", i, single)), filepath.Join(base, "rootfs")
			o := Options{Lower: lower, IDs: ids}
			if i == 0 && single && oneByOne() {
				must(t, makeDirs(dir, o))
				if _, err := makeOverlay(dir, o); !errors.Is(err, unix.EIO) {
					t.Fatalf("the kernel has not met the error: %v", err)
				}
			}
			err := Prepare(dir, at, o)
			oneByOne = was
			if err != nil {
				t.Fatalf("one by one %v: %v", single, err)
			}
			if ids.UserNS == "" {
				must(t, os.WriteFile(filepath.Join(at, "ours"), nil, 0o644))
			}
			must(t, Unmount(at))
		}
	}
}

// TestUnmountOfADeadFileSystem has the file system of a root shut itself down: then it answers nothing any more.
func TestUnmountOfADeadFileSystem(t *testing.T) {
	base := needRoot(t)
	disk := filepath.Join(base, "disk")
	must(t, os.Mkdir(disk, 0o755))
	v := volume.Mounted(t, disk, volume.XFS, 0)
	at := filepath.Join(base, "rootfs")
	must(t, Prepare(filepath.Join(disk, "c"), at, Options{Lower: layers(t, base, 2)}))
	must(t, v.ShutDown(volume.Unlogged))
	if _, err := isMount(at); err == nil {
		t.Error("the file system answers still")
	}
	must(t, Unmount(at))
	if mounted, err := isMount(at); mounted || err != nil {
		t.Errorf("after that it is mounted: %v, %v", mounted, err)
	}
}

func descriptor(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}
