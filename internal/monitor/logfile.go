package monitor

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// logFile is an open log. A log that cannot be written to (a full disk) never holds up the container: what does not fit is
// dropped whole entries at a time and counted, and a notice says how much when there is room again.
type logFile struct {
	fd      int
	dropped int  // entries
	torn    bool // the last entry was cut off in the middle
}

// how a log's path is looked up: below its directory, and through no symbolic link, since other pods may write there.
const logResolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openLog opens or makes the log's file, and the directories between it and the log directory.
func openLog(l *wire.Log) (*logFile, error) {
	dir, err := unix.Open(l.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open log directory %s: %w", l.Dir, err)
	}
	defer unix.Close(dir)
	how := &unix.OpenHow{
		Flags: unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK,
		Mode:  0o640, Resolve: logResolve,
	}
	fd, err := unix.Openat2(dir, l.Path, how)
	if err == unix.ENOENT {
		if err = makeParents(dir, l.Path); err == nil {
			fd, err = unix.Openat2(dir, l.Path, how)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open log %s below %s: %w", l.Path, l.Dir, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open log %s below %s: not a regular file", l.Path, l.Dir)
	}
	return &logFile{fd: fd}, nil
}

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
		next, err := unix.Openat2(at, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: logResolve})
		_ = unix.Close(at)
		if err != nil {
			return err
		}
		at = next
	}
	return unix.Close(at)
}

// write appends entries.
func (l *logFile) write(entries []byte) {
	if len(entries) == 0 {
		return
	}
	if l.dropped > 0 || l.torn {
		if !l.recover() {
			l.dropped += bytes.Count(entries, []byte{'\n'})
			return
		}
	}
	for len(entries) > 0 {
		n, err := unix.Write(l.fd, entries)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			l.dropped += bytes.Count(entries, []byte{'\n'})
			return
		}
		l.torn = n < len(entries) && n > 0 && entries[n-1] != '\n'
		entries = entries[n:]
	}
}

// recover tries to write a notice of what was dropped, and says whether there is room again.
func (l *logFile) recover() bool {
	var notice []byte
	if l.torn {
		notice = append(notice, '\n')
	}
	text := fmt.Sprintf("[berth: the log could not be written, %d lines were dropped]", l.dropped)
	notice = appendEntry(notice, time.Now(), 2, 'F', []byte(text))
	n, err := unix.Write(l.fd, notice)
	if err != nil || n < len(notice) {
		l.torn = l.torn || n > 0
		return false
	}
	l.dropped, l.torn = 0, false
	return true
}

func (l *logFile) close() { _ = unix.Close(l.fd) }
