// Package device looks up device nodes of the host, for specs that hand them to containers.
package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ErrNotDevice says that a path is neither a device nor a directory with devices below it.
var ErrNotDevice = errors.New("not a device")

// List is the device at path, or all devices below it when it is a directory. A symbolic link at path is followed, so that
// /dev/disk/by-id/… names a device; links below a directory are not. Every Path is path or begins with it. It serves as
// spec.Input.StatDevice, and List("/dev") as spec.Host.Devices.
func List(path string) ([]specs.LinuxDevice, error) {
	path = filepath.Clean(path)
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("look up device: %w", err)
	}
	var out []specs.LinuxDevice
	err = filepath.WalkDir(real, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.Type()&fs.ModeDevice == 0 {
			return nil // gone since it was listed, or nothing of ours
		}
		if err != nil {
			return err
		}
		dev, err := stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		dev.Path = path + p[len(real):]
		out = append(out, dev)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up device: %w", err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("look up device: %s: %w", path, ErrNotDevice)
	}
	return out, nil
}

func stat(path string) (specs.LinuxDevice, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return specs.LinuxDevice{}, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	kind := "c"
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		kind = "b"
	}
	mode, uid, gid := os.FileMode(st.Mode&0o777), st.Uid, st.Gid
	return specs.LinuxDevice{Path: path, Type: kind, Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)),
		FileMode: &mode, UID: &uid, GID: &gid}, nil
}
