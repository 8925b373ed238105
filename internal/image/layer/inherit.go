package layer

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// defaults are the owner and the mode that the kernel gives to new files of this process. Unpack sets only what differs
// from them, which saves two system calls for most files.
type defaults struct {
	uid, gid int
	umask    uint32
}

// special are the mode bits that a change of owner clears, or that a directory passes on to directories in it.
const special = unix.S_ISUID | unix.S_ISGID | unix.S_ISVTX

// learnDefaults prepares the root of a layer and finds out the defaults of files in it. It removes the access control
// lists that the root inherited from the store's directories, because all files of the layer would inherit them.
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
	// The umask is learnt from a directory: umask(2) cannot read it without changing it for all threads.
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

// owner reports whether a new file in the directory belongs to uid:gid without a chown. The group may come from the
// directory: if it is setgid, or if the file system is mounted with grpid.
func (d defaults) owner(in *dirInfo, uid, gid int) bool {
	return uid == d.uid && gid == d.gid && int(in.gid) == d.gid
}

// mode reports whether a new file in the directory has the mode without a chmod. Special bits always need one, after
// content and owner, because writing and a change of owner clear them; so does a new directory in a setgid one, because
// it becomes setgid too.
func (d defaults) mode(in *dirInfo, kind string, mode uint32) bool {
	return mode&(special|d.umask) == 0 && !(kind == typeDir && in.mode&unix.S_ISGID != 0)
}
