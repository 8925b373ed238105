package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNoQuota says that a file system keeps no project to a limit.
var ErrNoQuota = errors.New("it keeps no project to a limit")

// Quota is what a project may take at most. A field that is 0 is no limit.
type Quota struct{ Bytes, Inodes uint64 }

// Unlimited says that it limits nothing.
func (q Quota) Unlimited() bool { return q == Quota{} }

// LimitsProjects returns nil when the file system of dir keeps projects to their limits. Else it is an ErrNoQuota that
// says what is missing, or the error that kept it from being known.
func LimitsProjects(dir string) error {
	f, err := openForQuota(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return limitsProjects(f)
}

func limitsProjects(f *os.File) error {
	state := quotaState{version: 1}
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), getQuotaState, 0,
		uintptr(unsafe.Pointer(&state)), 0, 0)
	var why string
	switch {
	case errno == unix.ENOSYS || errno == unix.EINVAL || errno == unix.EOPNOTSUPP || errno == unix.ENOTTY:
		why = "it has no quota of projects, or the kernel is older than 5.14"
	case errno != 0:
		return fmt.Errorf("read the state of the quotas on the file system of %s: %w", f.Name(), errno)
	case state.flags&projectsCounted == 0:
		why = "it keeps no account of projects"
	case state.flags&projectsLimited == 0:
		why = "it keeps account of projects, but was mounted without the option that keeps them to a limit"
	default:
		return nil
	}
	return fmt.Errorf("the file system of %s: %w: %s", f.Name(), ErrNoQuota, why)
}

// QuotaOf returns what the project of dir may take, unlimited where there is no limit. The errors are those of
// SetQuota.
func QuotaOf(dir string) (Quota, error) {
	f, err := openForQuota(dir)
	if err != nil {
		return Quota{}, fmt.Errorf("read the quota: %w", err)
	}
	defer f.Close()
	if err := limitsProjects(f); err != nil {
		return Quota{}, err
	}
	attr, err := attributes(f)
	if err != nil {
		return Quota{}, err
	}
	if !attr.ours() {
		return Quota{}, noProject(dir)
	}
	q, err := quotaOf(f, attr.projid)
	return Quota{Bytes: q.hardSpace * quotaUnit, Inodes: q.hardInodes}, err
}

// SetQuota sets what the project of dir may take; an unlimited Quota takes the limit away. It may be repeated. The
// error is ErrNoQuota where the file system would not keep to it, or dir has no project of Berth's.
func SetQuota(dir string, q Quota) error {
	f, err := openForQuota(dir)
	if err != nil {
		return fmt.Errorf("set the quota: %w", err)
	}
	defer f.Close()
	if err := limitsProjects(f); err != nil {
		return err
	}
	attr, err := attributes(f)
	switch {
	case err != nil:
		return err
	case !attr.ours() && q.Unlimited():
		return nil
	case !attr.ours():
		return noProject(dir)
	}
	return setQuota(f, attr.projid, q)
}

func noProject(dir string) error {
	return fmt.Errorf("%s has no project, because it was made while nobody counted: %w", dir, ErrNoQuota)
}

// ClearQuota takes the limit of the project of dir away, so that nothing of it stays when its last file is gone. It
// returns nil where there is neither a directory nor a limit.
func ClearQuota(dir string) error {
	err := SetQuota(dir, Quota{})
	if errors.Is(err, ErrNoQuota) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTTY) ||
		errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// The calls quotactl_fd(fd, QCMD(Q_SETQUOTA, PRJQUOTA), id, &dqblk) and QCMD(Q_XGETQSTATV, PRJQUOTA).
const (
	setProjectQuota = 0x800008<<8 | 2
	getQuotaState   = ('X'<<8|8)<<8 | 2
)

// quotaUnit is that of limits of space, QIF_DQBLKSIZE. They are rounded down, so that no project gets more than was
// asked for.
const quotaUnit = 1024

// Which limits a dqblk sets: QIF_BLIMITS and QIF_ILIMITS.
const bothLimits = 1 | 4

func setQuota(f *os.File, id uint32, q Quota) error {
	set := dqblk{hardSpace: q.Bytes / quotaUnit, hardInodes: q.Inodes, valid: bothLimits}
	if q.Bytes > 0 {
		set.hardSpace = max(set.hardSpace, 1)
	}
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), setProjectQuota, uintptr(id),
		uintptr(unsafe.Pointer(&set)), 0, 0)
	if errno != 0 {
		return fmt.Errorf("set the quota of project %d on the file system of %s: %w", id, f.Name(), errno)
	}
	return nil
}

// quotaState is the kernel's struct fs_quota_statv, which ext4 fills in like XFS.
type quotaState struct {
	version int8
	_       uint8
	flags   uint16
	_       [156]byte
}

// The flags FS_QUOTA_PDQ_ACCT and FS_QUOTA_PDQ_ENFD.
const projectsCounted, projectsLimited = 1 << 4, 1 << 5
