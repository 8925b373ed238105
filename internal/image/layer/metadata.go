package layer

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const paxXattr = "SCHILY.xattr."

// describeEntry is what the manifest says of an entry, all but type and content.
func describeEntry(h *tar.Header, full string) entry {
	e := entry{Path: full, Mode: uint32(h.Mode) & 0o7777, UID: h.Uid, GID: h.Gid}
	if !h.ModTime.IsZero() {
		e.Mtime = nanoseconds(h.ModTime)
	}
	return e
}

// The times that any file system holds: 32 bits of seconds. Ones from before become the first. Ones from after are kept as far
// as a manifest can tell them, for most file systems hold more.
const (
	firstTime = math.MinInt32
	lastTime  = math.MaxInt32
)

func nanoseconds(t time.Time) int64 {
	if t.Unix() < firstTime {
		return firstTime * int64(time.Second)
	}
	if t.Unix() > math.MaxInt64/int64(time.Second)-1 {
		return math.MaxInt64 / int64(time.Second) * int64(time.Second)
	}
	return t.UnixNano()
}

// sameTime says whether a file system that was given a time may answer with the other: one that does not hold it gives its last.
func sameTime(given, kept int64) bool {
	const last = lastTime * int64(time.Second)
	return given == kept || given > last && kept >= last && kept < given
}

// applyMetadata gives the thing at base in the open parent its owner, mode, xattrs and times, in this order: a change
// of owner takes setuid bits and capabilities away.
func (u *unpacker) applyMetadata(base string, h *tar.Header, e *entry) error {
	if err := u.applyAt(u.parent.fd, base, h, e); err != nil {
		return err
	}
	return setTimes(u.parent.fd, base, time.Unix(0, e.Mtime))
}

func (u *unpacker) applyAt(dirfd int, base string, h *tar.Header, e *entry) error {
	if err := unix.Fchownat(dirfd, base, e.UID, e.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if e.Type == typeSymlink {
		e.Mode = 0o777
	} else if err := unix.Fchmodat(dirfd, base, e.Mode, 0); err != nil { // never a symlink: made a moment ago
		return err
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, paxXattr)
		if !ok || strings.HasPrefix(name, "trusted.") {
			continue // trusted.* steers the overlay: a layer must not reach it
		}
		name = strings.Clone(name)                   // else all records of the entry are kept for as long as the name
		if name == defaultACL && e.Type == typeDir { // what is put into the directory would inherit it
			e.setXattr(name, []byte(value))
			continue
		}
		if err := u.keepXattr(dirfd, base, name, []byte(value), e); err != nil {
			return err
		}
	}
	return nil
}

// keepXattr sets one attribute. What the file system or the kind of file cannot keep is counted and left out.
func (u *unpacker) keepXattr(dirfd int, base, name string, value []byte, e *entry) error {
	err := unix.Lsetxattr(procPath(dirfd, base), name, value, 0)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) && e.Type != typeFile && e.Type != typeDir {
		u.res.Unsupported++
		return nil
	}
	if err != nil {
		return err
	}
	e.setXattr(name, value)
	return nil
}

func (e *entry) setXattr(name string, value []byte) {
	if e.Xattrs == nil {
		e.Xattrs = map[string][]byte{}
	}
	e.Xattrs[name] = value
}

// The access control list of a file, and the one that a directory gives to what is made in it.
const (
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"
)

// keepDefaultACL sets the list that a directory gives on, when all that the layer puts into it is there.
func (u *unpacker) keepDefaultACL(id nodeID, dirfd int, base string) error {
	value, ok := u.xattrs[id][defaultACL]
	if !ok {
		return nil
	}
	e := entry{Type: typeDir, Xattrs: u.xattrs[id]}
	delete(e.Xattrs, defaultACL)
	return u.keepXattr(dirfd, base, defaultACL, value, &e)
}

// disinherit takes from a new file or directory the access control lists that its parent gave it.
func disinherit(host string) error {
	for _, name := range []string{accessACL, defaultACL} {
		err := unix.Lremovexattr(host, name)
		if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	return nil
}

func setTimes(dirfd int, base string, t time.Time) error {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(dirfd, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// procPath names base below an open directory, for calls that take no directory descriptor.
func procPath(dirfd int, base string) string {
	return procSelf(dirfd) + "/" + base
}

// procSelf names what a descriptor is open at.
func procSelf(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

func allZero(b []byte) bool {
	return len(b) == 0 || b[0] == 0 && bytes.Count(b, []byte{0}) == len(b) // counting is what the library does by the vector
}
