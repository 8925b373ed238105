package monitor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/monitor/wire"
)

// logFile is an open log. A log that cannot be written to (a full disk) never holds up the container: what does not fit
// is dropped whole entries at a time and counted, and a notice says how much when there is room again.
type logFile struct {
	fd      int    // -1: it could not be opened, is tried again, and all is dropped until then
	id      fileID // of one that could not be opened, that of the log that was last written to
	dropped int64  // entries
	torn    bool   // the last entry was cut off in the middle
	excess  excess
	rate    int64 // bytes a second; 0 is no limit
	burst   int64
	size    int64
	sized   time.Time // when size was asked for

	unlinked bool // it has no name any more: another file was renamed over it, or it was removed

	of    *wire.Log // where it is
	stays bool      // no other file that is there is the log: it may be that of another container
	tried time.Time // when it was opened again, or was to be
	gone  bool      // there was none then, or another's
}

// how a log's path is looked up: below its directory, and through no symbolic link, since other pods may write there.
const logResolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// logFlags are how a log is opened.
const logFlags = unix.O_WRONLY | unix.O_APPEND | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK

// openLog opens or makes the log's file, and the directories between it and the log directory.
func openLog(l *wire.Log) (*logFile, error) { return openLogBy(l, unix.O_CREAT) }

// openLogBy opens the log's file. create is O_CREAT, or 0 where none is to be made.
func openLogBy(l *wire.Log, create uint64) (*logFile, error) {
	dir, err := openat2(unix.AT_FDCWD, l.Dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC})
	if err != nil {
		return nil, &fs.PathError{Op: "open log directory", Path: l.Dir, Err: err}
	}
	defer unix.Close(dir)
	how := &unix.OpenHow{Flags: logFlags | create, Resolve: logResolve}
	if create != 0 {
		how.Mode = 0o640
	}
	fd, err := openat2(dir, l.Path, how)
	if err == unix.ENOENT && create != 0 {
		if err = makeParents(dir, l.Path); err == nil {
			fd, err = openat2(dir, l.Path, how)
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open log", Path: filepath.Join(l.Dir, l.Path), Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open log %s below %s: not a regular file", l.Path, l.Dir)
	}
	return openedLog(l, fd, &st), nil
}

// openedLog is a log that is open. Whoever has written to it may have been cut off.
func openedLog(l *wire.Log, fd int, st *unix.Stat_t) *logFile {
	return &logFile{fd: fd, id: idOf(st), torn: endsTorn(fd, st.Size), rate: l.Rate, burst: l.Burst, of: l}
}

// openat2 is that of the kernel. A log may be on a file system of which opening is broken off by a signal, as FUSE.
func openat2(dir int, path string, how *unix.OpenHow) (fd int, err error) {
	err = uninterrupted(func() error {
		fd, err = unix.Openat2(dir, path, how)
		return err
	})
	return fd, err
}

func idOf(st *unix.Stat_t) fileID { return fileID{st.Dev, st.Ino} }

// makeParents makes the directories above path, below dir.
func makeParents(dir int, path string) error {
	at, err := unix.Dup(dir)
	if err != nil {
		return err
	}
	for _, name := range strings.Split(filepath.Dir(path), "/") {
		if err := unix.Mkdirat(at, name, 0o755); err != nil && err != unix.EEXIST {
			_ = unix.Close(at)
			return err
		}
		next, err := openat2(at, name,
			&unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: logResolve})
		_ = unix.Close(at)
		if err != nil {
			return err
		}
		at = next
	}
	return unix.Close(at)
}

// notice is what has to be written before the next entries: the end of a torn entry, and how much was dropped. The same
// fields make the same notice.
func (l *logFile) notice(dst []byte, at time.Time) []byte {
	if l.torn {
		dst = append(dst, '\n')
	}
	if l.dropped > 0 {
		text := fmt.Sprintf("[berth: the log could not be written, %d lines were dropped]", l.dropped)
		dst = appendEntry(dst, appendHead(nil, at, 2), 'F', []byte(text))
	}
	if l.excess.Lines > 0 {
		dst = l.excess.notice(dst, at, l.rate)
	}
	return dst
}

// write appends entries that have a notice before them, from the byte on that is not in the log yet. What does not fit
// is dropped. A notice that is not whole is written anew.
func (l *logFile) write(entries []byte, notice, written int) {
	for written < len(entries) {
		n, err := unix.Write(l.fd, entries[written:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			break
		}
		written += n
		l.size += int64(n)
		_ = fault.At("monitor.log.written")
	}
	if written > 0 {
		l.torn = entries[written-1] != '\n'
	}
	if written >= notice {
		l.dropped = 0
		l.excess.noticed()
	}
	left := entries[max(written, notice):]
	if l.torn && len(left) > 0 && left[0] == '\n' {
		left = left[1:] // only its end is missing, which comes with the next notice
	}
	l.dropped += int64(bytes.Count(left, []byte{'\n'}))
}

// sizeTime is how long a log's size is believed. Nobody else should write there, and somebody may truncate it.
const sizeTime = 100 * time.Millisecond

// sizeAt is the log's size.
func (l *logFile) sizeAt(at time.Time) int64 {
	if at.Sub(l.sized) > sizeTime {
		var st unix.Stat_t
		if unix.Fstat(l.fd, &st) == nil {
			l.size, l.unlinked = st.Size, st.Nlink == 0
		}
		l.sized = at
	}
	return l.size
}

// openPause is from try to try to open a log that could not be opened.
const openPause = time.Second

// unopened is a log that could not be opened just now: its disk is read-only for a moment, or there are no descriptors.
// was is the file that was last written to.
func unopened(l *wire.Log, was fileID, err error) *logFile {
	return &logFile{fd: -1, id: was, rate: l.Rate, burst: l.Burst, of: l, tried: time.Now(), gone: isGone(err)}
}

// tryAgain opens a log that could not be opened, if it can be now, and one that has no name any more, if another file
// has it. A kubelet renames the old log back when a reopening has failed, and may take one for failed that has not.
func (l *logFile) tryAgain(at time.Time) {
	if l.fd >= 0 && (!l.unlinked || l.stays) || at.Sub(l.tried) < openPause {
		return
	}
	f, err := l.again()
	if l.tried = at; err != nil {
		l.gone = isGone(err)
		return
	}
	if l.fd >= 0 && f.id == l.id { // its file system counts no links
		f.close()
		return
	}
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
		logf("a log was replaced by another file of its name, in which it goes on")
	} else {
		logf("a log that could not be opened is open now; %d lines were dropped", l.dropped)
	}
	l.fd, l.id, l.sized, l.torn, l.unlinked = f.fd, f.id, time.Time{}, f.torn, false
}

// again opens the log once more. One that was open, and was removed, is not made anew.
func (l *logFile) again() (*logFile, error) {
	switch {
	case l.stays:
		return openLogThatWas(l.of, l.id)
	case l.fd < 0:
		return openLog(l.of)
	}
	return openLogBy(l.of, 0)
}

// isGone reports whether a log could not be opened because it is not there. Else the kernel says what is in the way.
func isGone(err error) bool {
	var errno unix.Errno
	return !errors.As(err, &errno) || errno == unix.ENOENT
}

// endsTorn reports whether the last entry in a log was cut off.
func endsTorn(log int, size int64) bool {
	if size == 0 {
		return false
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(log), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	last := make([]byte, 1)
	n, err := unix.Pread(fd, last, size-1)
	return err == nil && n == 1 && last[0] != '\n'
}

// owed reports whether something is still to be noticed, and may be.
func (l *logFile) owed() bool { return (l.fd >= 0 || !l.gone) && !l.clean() }

// clean reports whether nothing is still to be noticed.
func (l *logFile) clean() bool { return l.dropped == 0 && !l.torn && l.excess.Lines == 0 }

func (l *logFile) close() {
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
	}
}
