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

// The times that any file system holds: 32 bits of seconds. Ones from before become the first. Ones from after are kept
// as far as a manifest can tell them, for most file systems hold more.
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

// sameTime reports whether a file system that was given a time may answer with the other: one that does not hold it
// gives its last.
func sameTime(given, kept int64) bool {
	const last = lastTime * int64(time.Second)
	return given == kept || given > last && kept >= last && kept < given
}

// born says what a new file need not be given: it was made with the mode of its entry, in the directory in.
type born struct {
	in   *dirInfo // nil for what was there before
	from defaults
}

func (b born) owned(e *entry) bool { return b.in != nil && b.from.owner(b.in, e.UID, e.GID) }
func (b born) moded(e *entry) bool { return b.in != nil && b.from.mode(b.in, e.Type, e.Mode) }

// applyMetadata gives a new thing its owner, mode, xattrs and times, in this order: a change of owner takes setuid bits
// and capabilities away.
func (u *unpacker) applyMetadata(to target, h *tar.Header, e *entry) error {
	if err := u.applyAt(to, e.Path, born{u.dirs.at(u.parent.id), u.defaults}, h, e); err != nil {
		return err
	}
	return to.setTimes(time.Unix(0, e.Mtime))
}

// applyAt gives what is at a path of the layer its owner, mode and xattrs, as far as it was not made with them.
func (u *unpacker) applyAt(to target, full string, b born, h *tar.Header, e *entry) error {
	if !b.owned(e) {
		if err := to.chown(e.UID, e.GID); err != nil {
			return err
		}
	}
	if e.Type == typeSymlink {
		e.Mode = 0o777
	} else if !b.moded(e) {
		if err := to.chmod(e.Mode); err != nil {
			return err
		}
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
		noted, err := u.grants.xattr(full, name, []byte(value), u.man.lines+1)
		if noted {
			e.setXattr(name, []byte(value))
		} else if err == nil {
			err = u.keepXattr(to, name, []byte(value), e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// keepXattr sets one attribute. What the file system or the kind of file cannot keep is counted and left out.
func (u *unpacker) keepXattr(to target, name string, value []byte, e *entry) error {
	err := to.setXattr(name, value)
	if unkept(err, e.Type) {
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
	return u.keepXattr(target{dirfd, base}, defaultACL, value, &e)
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

// WithoutProc says that this process has no /proc and works on one layer at a time. Paths for calls that take no
// directory descriptor are then relative to the current directory, which is the process's.
var WithoutProc bool

// procPath names base below an open directory, for calls that take no directory descriptor. It is good for the next
// call.
func procPath(dirfd int, base string) string {
	if !WithoutProc {
		return "/proc/self/fd/" + strconv.Itoa(dirfd) + "/" + base
	}
	if unix.Fchdir(dirfd) != nil {
		return "" // no call takes it
	}
	return base
}

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
