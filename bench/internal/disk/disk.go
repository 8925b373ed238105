// Package disk makes file systems that a benchmark throws away, and says what was written to them.
package disk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Disk is a file system of its own.
type Disk struct {
	dir     string
	backing string // file of the loop device; empty for a tmpfs
	stat    string // of the loop device
}

// Tmpfs mounts an empty tmpfs at dir. A size of 0 is as large as the kernel has it.
func Tmpfs(dir string, size int64) (*Disk, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	options := "mode=755"
	if size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		return nil, fmt.Errorf("mount a tmpfs: %w", err)
	}
	return &Disk{dir: dir}, nil
}

// Ext4 mounts an empty ext4 at dir, on a loop device whose file lies beside dir. The file is sparse.
func Ext4(dir string, size int64) (*Disk, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	d := &Disk{dir: dir, backing: dir + ".ext4"}
	if err := d.mountExt4(size); err != nil {
		return nil, errors.Join(err, os.Remove(d.backing))
	}
	return d, nil
}

// mountExt4 leaves no work for later: an ext4 fills its tables in the background, unless told not to.
func (d *Disk) mountExt4(size int64) error {
	if err := os.WriteFile(d.backing, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(d.backing, size); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"mkfs.ext4", "-q", "-F", d.backing}, {"mount", "-t", "ext4", "-o", "loop,noinit_itable", d.backing, d.dir},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(d.dir, &st); err != nil {
		return err
	}
	d.stat = fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Dev), unix.Minor(st.Dev))
	return nil
}

// Used is the bytes that the file system holds.
func (d *Disk) Used() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		return 0, fmt.Errorf("read usage of a disk: %w", err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, nil
}

// Written is the bytes that the device below was given; 0 for a tmpfs.
func (d *Disk) Written() (int64, error) {
	if d.stat == "" {
		return 0, nil
	}
	data, err := os.ReadFile(d.stat)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data))
	if len(fields) < 7 {
		return 0, fmt.Errorf("%s has %d fields", d.stat, len(fields))
	}
	sectors, err := strconv.ParseInt(fields[6], 10, 64)
	return sectors * 512, err
}

// Sync makes all of it durable.
func (d *Disk) Sync() error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return unix.Syncfs(int(f.Fd()))
}

// Close unmounts the file system with what is mounted below it, and forgets it.
func (d *Disk) Close() error {
	err := unix.Unmount(d.dir, unix.MNT_DETACH)
	if d.backing != "" {
		err = errors.Join(err, os.Remove(d.backing))
	}
	return errors.Join(err, os.RemoveAll(filepath.Clean(d.dir)))
}
