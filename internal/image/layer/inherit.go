package layer

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// defaults are the owner and the mode that the kernel gives to what this process makes, so that only what differs from
// them is set: two system calls less for most files.
type defaults struct {
	uid, gid int
	umask    uint32
}

// special are the bits that a change of owner takes away, or that a directory gives on to those in it.
const special = unix.S_ISUID | unix.S_ISGID | unix.S_ISVTX

// learnDefaults prepares the root of a layer and finds out what is made in it by itself. An access control list that
// the root got from the store's own directories is taken away: it would be given on to all files of the layer.
func learnDefaults(root string) (defaults, error) {
	d := defaults{uid: unix.Geteuid(), gid: unix.Getegid()}
	if err := disinherit(root); err != nil {
		return d, err
	}
	if err := unix.Fchownat(unix.AT_FDCWD, root, 0, 0, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return d, err
	}
	if err := unix.Chmod(root, 0o755); err != nil {
		return d, err
	}
	// The process has one umask for all its threads, and no call that only reads it.
	trial := root + "/umask"
	if err := unix.Mkdir(trial, 0o777); err != nil {
		return d, err
	}
	var st unix.Stat_t
	err := unix.Lstat(trial, &st)
	d.umask = 0o777 &^ st.Mode
	if err = errors.Join(err, unix.Rmdir(trial)); err != nil {
		return d, fmt.Errorf("learn the umask: %w", err)
	}
	return d, nil
}

// owner reports whether what is made in the directory belongs to uid:gid at once. A setgid directory, and any directory
// of a file system that is mounted with grpid, gives on its group.
func (d defaults) owner(in *dirInfo, uid, gid int) bool {
	return uid == d.uid && gid == d.gid && int(in.gid) == d.gid
}

// mode reports whether what is made in the directory with that mode has it at once. The special bits of files are set
// last, since writing and a change of owner take them away; a setgid directory makes its subdirectories setgid.
func (d defaults) mode(in *dirInfo, kind string, mode uint32) bool {
	return mode&(special|d.umask) == 0 && !(kind == typeDir && in.mode&unix.S_ISGID != 0)
}
