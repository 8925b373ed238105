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

// describeEntry returns the manifest entry of a header, without its type and what depends on the content.
func describeEntry(h *tar.Header, full string) entry {
	e := entry{Path: full, Mode: uint32(h.Mode) & 0o7777, UID: h.Uid, GID: h.Gid}
	if !h.ModTime.IsZero() {
		e.Mtime = nanoseconds(h.ModTime)
	}
	return e
}

// The times that every file system can store: 32 bits of seconds. Earlier times become the first one. Later times are
// kept as far as a manifest can express them, because most file systems can store them too.
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

// sameTime reports whether a file system that was given one time may have stored the other: a time that is too late for
// it becomes its last.
func sameTime(given, kept int64) bool {
	const last = lastTime * int64(time.Second)
	return given == kept || given > last && kept >= last && kept < given
}

// born tells which metadata a new file has already: it was made with the mode of its entry, in the directory in.
type born struct {
	in   *dirInfo // nil for a file that was there before
	from defaults
}

func (b born) owned(e *entry) bool { return b.in != nil && b.from.owner(b.in, e.UID, e.GID) }
func (b born) moded(e *entry) bool { return b.in != nil && b.from.mode(b.in, e.Type, e.Mode) }

// applyMetadata gives a new file its owner, mode, xattrs and times, in this order, because a change of owner clears
// setuid bits and capabilities.
func (u *unpacker) applyMetadata(to target, h *tar.Header, e *entry) error {
	if err := u.applyAt(to, e.Path, born{u.dirs.at(u.parent.id), u.defaults}, h, e); err != nil {
		return err
	}
	return to.setTimes(time.Unix(0, e.Mtime))
}

// applyAt gives the file at a path of the layer its owner, mode and xattrs, except what it was made with.
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
			continue // trusted.* controls the overlay, so a layer must not set it
		}
		name = strings.Clone(name)                   // a substring would keep all records of the entry in memory
		if name == defaultACL && e.Type == typeDir { // set by finish: files of the layer must not inherit it
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

// keepXattr sets one attribute. If the file system or the type of the file does not support it, it is counted and left
// out.
func (u *unpacker) keepXattr(to target, name string, value []byte, e *entry) error {
	err := to.setXattr(name, value)
	if unkept(err, e.Type) {
		u.res.Unsupported++
		return nil
	}
	if err != nil {
		return err
	}
	if name == accessACL || name == defaultACL || name == capability {
		return noteKept(to, name, e)
	}
	e.setXattr(name, value)
	return nil
}

// noteKept notes an attribute as the kernel gives it back. It makes the mode of a file out of an access control list
// that says no more, and keeps others, and capabilities, in a form of its own.
func noteKept(to target, name string, e *entry) error {
	value, err := to.xattr(name)
	if err == nil {
		e.setXattr(name, value)
	} else if !errors.Is(err, unix.ENODATA) {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if name != accessACL {
		return nil
	}
	st, err := to.stat()
	e.Mode = st.Mode & 0o7777
	return err
}

func (e *entry) setXattr(name string, value []byte) {
	if e.Xattrs == nil {
		e.Xattrs = map[string][]byte{}
	}
	e.Xattrs[name] = value
}

// The attributes with the access control list of a file, and with the one that files in a directory inherit.
const (
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"
)

// capability is the attribute with the capabilities of a program.
const capability = "security.capability"

// keepDefaultACL sets the default ACL of a directory, after the last file of the layer has been made in it.
func (u *unpacker) keepDefaultACL(id nodeID, dirfd int, base string) error {
	value, ok := u.xattrs[id][defaultACL]
	if !ok {
		return nil
	}
	e := entry{Type: typeDir, Xattrs: u.xattrs[id]}
	delete(e.Xattrs, defaultACL)
	return u.keepXattr(target{dirfd, base}, defaultACL, value, &e)
}

// disinherit removes the access control lists that a new file or directory inherited from its parent.
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

// WithoutProc is set in a process that has no /proc and works on one layer at a time. It then changes the current
// directory, which all threads share, before each system call that takes no directory descriptor.
var WithoutProc bool

// procPath returns a path of the file base in an open directory, for system calls that take no directory descriptor. It
// is valid until procPath is called again.
func procPath(dirfd int, base string) string {
	if !WithoutProc {
		return "/proc/self/fd/" + strconv.Itoa(dirfd) + "/" + base
	}
	if unix.Fchdir(dirfd) != nil {
		return "" // system calls refuse the empty path
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
	return len(b) == 0 || b[0] == 0 && bytes.Count(b, []byte{0}) == len(b) // bytes.Count uses vector instructions
}
