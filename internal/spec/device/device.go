// Package device looks up device nodes of the host, for specs that hand them to containers.
package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ErrNotDevice says that a path is neither a device nor a directory with devices below it.
var ErrNotDevice = errors.New("not a device")

// ownMounts are file systems that a container has of its own below /dev. No device of the host is there, and any local
// user may fill /dev/shm with files, so a walk over /dev does not enter them.
var ownMounts = []string{"/dev/shm", "/dev/pts", "/dev/mqueue"}

// List returns the device at path, or all devices below it when it is a directory, as they are at this moment. It
// follows a symbolic link at path, so that /dev/disk/by-id/… names a device, and follows none below a directory. Every
// Path is path or begins with it. Below /dev it leaves out /dev/shm, /dev/pts and /dev/mqueue, unless path names one of
// them. A directory below path that cannot be read, such as a mount whose server has gone, is left out. It ends with
// ctx, and serves as spec.Input.StatDevice.
func List(ctx context.Context, path string) ([]specs.LinuxDevice, error) {
	path = filepath.Clean(path)
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("look up device: %w", err)
	}
	var out []specs.LinuxDevice
	err = filepath.WalkDir(real, func(p string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if p != real && slices.Contains(ownMounts, p) && d.IsDir() {
			return fs.SkipDir
		}
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.Type()&fs.ModeDevice == 0 {
			return nil // gone since it was listed, or nothing of ours
		}
		if err != nil && p != real {
			return nil
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
