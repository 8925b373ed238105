package rootfs

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Projects of Berth are numbered from firstProject; docs/adr/0017 says why. A project is a number that a directory
// hands down to all that is made in it, and of which the file system knows at any time how much room it takes.
const (
	firstProject = 0xb0000000
	projectBits  = 28
)

// CountsProjects reports whether the file system of dir keeps account of projects: ext4 with the feature and the
// option, XFS with the option prjquota; and whether the kernel tells it by a descriptor, from 5.14 on.
func CountsProjects(dir string) bool {
	f, err := openForQuota(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = quotaOf(f, firstProject)
	return err == nil
}

// assigning keeps two directories from being given one number.
var assigning sync.Mutex

// AssignProject gives an empty directory, and so all that will be made in it, a project that nothing else has. It may
// be repeated. There is nothing to unmake: a project is gone with its last file.
func AssignProject(dir string) error {
	f, err := openForQuota(dir)
	if err != nil {
		return fmt.Errorf("assign a project: %w", err)
	}
	defer f.Close()
	assigning.Lock()
	defer assigning.Unlock()
	attr, err := attributes(f)
	if err != nil || attr.ours() {
		return err
	}
	for try := range 100 {
		id := projectOf(filepath.Base(dir), try)
		used, err := quotaOf(f, id)
		if err != nil {
			return err
		}
		if used != (dqblk{}) {
			continue
		}
		attr.projid, attr.xflags = id, attr.xflags|xflagInherit
		return setAttributes(f, attr)
	}
	return fmt.Errorf("assign a project to %s: each of 100 numbers is taken", dir)
}

// projectOf is the number that a name is tried with.
func projectOf(name string, try int) uint32 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s %d", name, try)
	return firstProject | h.Sum32()&(1<<projectBits-1)
}

// ProjectUsage is how much room the project of dir takes, and how many inodes, dir's own among them. It costs four
// system calls. fs.ErrNotExist when dir is not there, or has no project of Berth's.
func ProjectUsage(dir string) (bytes, inodes uint64, err error) {
	f, err := openForQuota(dir)
	if err != nil {
		return 0, 0, fmt.Errorf("usage: %w", err)
	}
	defer f.Close()
	attr, err := attributes(f)
	if err != nil {
		return 0, 0, err
	}
	if !attr.ours() {
		return 0, 0, fmt.Errorf("usage of %s: it has no project: %w", dir, fs.ErrNotExist)
	}
	q, err := quotaOf(f, attr.projid)
	return q.space, q.inodes, err
}

func openForQuota(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// fsxattr is the kernel's struct of that name.
type fsxattr struct {
	xflags, extsize, extents, projid, cow uint32
	_                                     [8]byte
}

const xflagInherit = 0x200 // FS_XFLAG_PROJINHERIT

func (a fsxattr) ours() bool { return a.projid&^(1<<projectBits-1) == firstProject }

// FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR. Which bits say get and set differs by processor.
const (
	getAttributes = unix.FS_IOC_GETFLAGS&0xe0000000 | uint(unsafe.Sizeof(fsxattr{}))<<16 | 'X'<<8 | 31
	putAttributes = unix.FS_IOC_SETFLAGS&0xe0000000 | uint(unsafe.Sizeof(fsxattr{}))<<16 | 'X'<<8 | 32
)

func attributes(f *os.File) (a fsxattr, err error) {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(getAttributes), uintptr(unsafe.Pointer(&a)))
	if errno != 0 {
		err = &os.PathError{Op: "read the project of", Path: f.Name(), Err: errno}
	}
	return a, err
}

func setAttributes(f *os.File, a fsxattr) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(putAttributes), uintptr(unsafe.Pointer(&a)))
	if errno != 0 {
		return &os.PathError{Op: "set the project of", Path: f.Name(), Err: errno}
	}
	return nil
}

// takeAnyProject lets files of other projects be moved to a directory, which hands its own one down no more.
func takeAnyProject(dir *os.File) error {
	a, err := attributes(dir)
	if err != nil {
		return err
	}
	a.xflags &^= xflagInherit
	return setAttributes(dir, a)
}

// dqblk is the kernel's struct if_dqblk.
type dqblk struct {
	hardSpace, softSpace, space    uint64
	hardInodes, softInodes, inodes uint64
	spaceTime, inodesTime          uint64
	valid                          uint32
	_                              uint32
}

// The call quotactl_fd(fd, QCMD(Q_GETQUOTA, PRJQUOTA), id, &dqblk).
const getProjectQuota = 0x800007<<8 | 2

// quotaOf is what a project takes; one that has never taken anything takes nothing.
func quotaOf(f *os.File, id uint32) (q dqblk, err error) {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), getProjectQuota, uintptr(id), uintptr(unsafe.Pointer(&q)),
		0, 0)
	q.valid = 0
	switch {
	case errno == 0, errors.Is(errno, unix.ENOENT):
		return q, nil
	}
	return q, fmt.Errorf("read the quota of project %d on the file system of %s: %w", id, f.Name(), errno)
}
