package pull

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// disk is an empty file system for one runtime.
type disk struct {
	dir     string
	backing string // file of the loop device; empty for a tmpfs
	stat    string // of the loop device
}

// diskBytes is the size of an ext4. It is a sparse file.
const diskBytes = 4 << 30

// mountDisk mounts an empty tmpfs at dir, or an ext4 on a loop device whose file lies beside dir.
func mountDisk(dir string, ext4 bool) (*disk, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	d := &disk{dir: dir}
	if !ext4 {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return nil, fmt.Errorf("mount a tmpfs for a store: %w", err)
		}
		return d, nil
	}
	d.backing = dir + ".ext4"
	if err := d.mountExt4(); err != nil {
		return nil, errors.Join(err, os.Remove(d.backing))
	}
	return d, nil
}

// mountExt4 leaves no work for later: an ext4 fills its tables in the background, unless told not to.
func (d *disk) mountExt4() error {
	if err := os.WriteFile(d.backing, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(d.backing, diskBytes); err != nil {
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

// used is the bytes that the file system holds.
func (d *disk) used() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		return 0, fmt.Errorf("read usage of a store: %w", err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, nil
}

// written is the bytes that the device below was given; 0 for a tmpfs.
func (d *disk) written() (int64, error) {
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

// sync makes all of it durable.
func (d *disk) sync() error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return unix.Syncfs(int(f.Fd()))
}

// close unmounts the file system with what is mounted below it, and forgets it.
func (d *disk) close() error {
	err := unix.Unmount(d.dir, unix.MNT_DETACH)
	if d.backing != "" {
		err = errors.Join(err, os.Remove(d.backing))
	}
	return errors.Join(err, os.RemoveAll(filepath.Clean(d.dir)))
}

// loopback is the bytes that went over the loopback interface so far, with headers.
func loopback() (int64, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return 0, fmt.Errorf("find loopback: %w", err)
	}
	return int64(lo.Attrs().Statistics.RxBytes), nil
}
