// Package volume gives a test file systems that behave as bad disks do. A Volume is a small file system in a file on a
// loop device, which can be filled to the last byte, run out of inodes, turn read-only, or lose its power. A Slow is a
// directory whose answers come late or not at all.
package volume

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/timeouts"
)

// Kind is a sort of file system.
type Kind string

// The kinds that a Volume may be. Both keep a journal of their metadata and allocate data late, so both can lose what
// was written and keep the name.
const (
	Ext4 Kind = "ext4"
	XFS  Kind = "xfs"
)

// Available says what this machine lacks for volumes of the kind: nil for nothing.
func (k Kind) Available() error {
	if _, err := exec.LookPath("mkfs." + string(k)); err != nil {
		return err
	}
	_ = exec.Command("modprobe", string(k)).Run() // where it is built in, or there is none, the list says so
	known, err := os.ReadFile("/proc/filesystems")
	if err == nil && !strings.Contains(string(known), "\t"+string(k)+"\n") {
		err = fmt.Errorf("the kernel has no %s", k)
	}
	if err == nil {
		_, err = os.Stat("/dev/loop-control")
	}
	return err
}

// minimum is the least size in MiB that mkfs takes.
func (k Kind) minimum() int {
	if k == XFS {
		return 300
	}
	return 8
}

// A Volume is a file system in a file.
type Volume struct {
	kind  Kind
	image string
	at    string // where it is mounted, "" when it is not
}

// Make makes a file system of that many MiB, or of the least that its kind can have, in a new file in dir. The
// arguments go to mkfs.
func Make(dir string, kind Kind, mib int, mkfs ...string) (*Volume, error) {
	v := &Volume{kind: kind, image: filepath.Join(dir, "volume."+string(kind))}
	f, err := os.OpenFile(v.image, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(int64(max(mib, kind.minimum()))<<20), f.Close()); err != nil {
		return nil, err
	}
	return v, run("mkfs."+string(kind), append(append([]string{"-q"}, mkfs...), v.image)...)
}

// Mounted mounts a new volume at a directory until the test ends. Where this machine cannot have one, the test is
// skipped.
func Mounted(t testing.TB, at string, kind Kind, mib int, mkfs ...string) *Volume {
	t.Helper()
	if err := kind.Available(); err != nil {
		t.Skip(err)
	}
	v, err := Make(t.TempDir(), kind, mib, mkfs...)
	if err == nil {
		err = v.Mount(at)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// Mount mounts the volume, replaying its journal where it lost its power. What is written to it reaches its file only
// when somebody syncs: its journal waits longer than any test.
func (v *Volume) Mount(at string, options ...string) error {
	if v.kind == Ext4 {
		options = append(options, "commit=300")
	} else {
		options = append(options, "nouuid") // the original of a copy may be mounted still
	}
	if err := run("mount", "-t", string(v.kind), "-o", strings.Join(append(options, "loop"), ","), v.image,
		at); err != nil {
		return err
	}
	v.at = at
	return nil
}

// Unmount unmounts the volume, in order. It succeeds when it is not mounted. The loop device goes with it. A program
// that another test starts at this moment has copies of this process's descriptors until it is executed: a busy volume
// is waited for.
func (v *Volume) Unmount() error {
	if v.at == "" {
		return nil
	}
	deadline := time.Now().Add(timeouts.For(unmountTime))
	err := unix.Unmount(v.at, 0)
	for errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
		err = unix.Unmount(v.at, 0)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", v.at, err)
	}
	v.at = ""
	return nil
}

const unmountTime = 5 * time.Second

// Loss is what a power cut takes.
type Loss uint32

// The losses, as the kernel's FS_IOC_SHUTDOWN has them.
const (
	// Unlogged loses all that nobody synced.
	Unlogged Loss = 2
	// Unwritten loses the content of files, but the journal made it to the disk at the last moment: names, sizes and
	// renames are there, and files are empty.
	Unwritten Loss = 1
)

// shutdown is FS_IOC_SHUTDOWN, _IOR('X', 125, __u32).
const shutdown = 0x8004587d

// Cut takes the power from a mounted volume and unmounts it. From here on nothing reaches its file.
//
// What is mounted next is a copy. A mount namespace that somebody makes meanwhile has our mount as well and keeps it
// from going: the file system would still be there, without power, when the same file is mounted again.
func (v *Volume) Cut(l Loss) error {
	if err := v.ShutDown(l); err != nil {
		return err
	}
	if err := v.Unmount(); err != nil {
		return err
	}
	old := v.image
	v.image += "+"
	return errors.Join(run("cp", "--sparse=always", old, v.image), os.Remove(old))
}

// ShutDown takes the power from a mounted volume. It stays mounted, and answers every call with an error.
func (v *Volume) ShutDown(l Loss) error {
	dir, err := os.Open(v.at)
	if err != nil {
		return err
	}
	err = unix.IoctlSetPointerInt(int(dir.Fd()), shutdown, int(l))
	if err = errors.Join(err, dir.Close()); err != nil {
		return fmt.Errorf("cut the power of %s: %w", v.at, err)
	}
	return nil
}

// Freeze has everybody who writes to the file system at a path wait, as on a disk that hangs, until thaw is called or
// this process is gone. Who reads goes on.
func Freeze(at string) (thaw func() error, err error) {
	// It thaws when its input ends. The file system would stay as it is if that were left to a process that may be
	// killed.
	cmd := exec.Command("sh", "-c", `fsfreeze -f "$0" && echo && read -r line; fsfreeze -u "$0"`, at)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		return nil, errors.Join(fmt.Errorf("freeze %s: %w", at, err), in.Close(), cmd.Wait())
	}
	return func() error { return errors.Join(in.Close(), cmd.Wait()) }, nil
}

// Break makes a mounted ext4 find an error in itself, so that it turns read-only.
func (v *Volume) Break() error {
	var st unix.Stat_t
	if err := unix.Stat(v.at, &st); err != nil {
		return err
	}
	dev, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return err
	}
	if err := run("mount", "-o", "remount,errors=remount-ro", v.at); err != nil {
		return err
	}
	return os.WriteFile("/sys/fs/ext4/"+filepath.Base(dev)+"/trigger_fs_error", []byte("broken by a test"), 0)
}

// Repair repairs an ext4 that is not mounted.
func (v *Volume) Repair() error {
	var found *exec.ExitError
	err := exec.Command("fsck.ext4", "-p", "-f", v.image).Run()
	if errors.As(err, &found) && found.ExitCode() <= 2 { // it found errors, and none is left
		return nil
	}
	return err
}

// Fill writes to a file in dir until not one more block fits, and returns its path. It may be repeated.
func Fill(dir string) (path string, err error) {
	path = filepath.Join(dir, "filler")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return "", err
	}
	for size := 1 << 20; size >= 1; {
		if _, err = f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return path, errors.Join(fmt.Errorf("fill %s: %w", dir, err), f.Close())
	}
	return path, f.Close()
}

// FillInodes makes empty files in a directory below dir until not one more can be made, and returns the directory. It
// may be repeated.
func FillInodes(dir string) (path string, err error) {
	path = filepath.Join(dir, "fillers")
	for err = os.MkdirAll(path, 0o700); err == nil; {
		var f *os.File
		if f, err = os.CreateTemp(path, ""); err == nil {
			err = f.Close()
		}
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return path, nil
	}
	return path, err
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
