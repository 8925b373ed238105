package monitor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/monitor/wire"
)

// takeUpLog opens the log and finishes the batch that was being written to it. A kubelet may have renamed that log
// since. Where ended is true, so has the output: the log is not made then, nor is it another file.
func takeUpLog(w *logWriter, l *wire.Log, ended bool) *logFile {
	n := *w.journal.note()
	f, err := openUp(l, n.log, ended)
	if err != nil {
		logf("take over the log: %v", err)
		f = unopened(l, n.log, err)
	}
	f.stays = ended
	bound(w, f)
	f.dropped, f.excess = n.dropped, n.excess
	if n.batch.stream == 0 {
		return f
	}
	to := f
	if f.fd < 0 || f.id != n.log {
		if old := findLog(l, n.log); old != nil {
			old.dropped, old.excess, old.rate = n.dropped, n.excess, f.rate // as it is bounded
			to = old
			defer old.close()
		}
	}
	if to.id == n.log {
		to.torn = n.torn // before the batch
	}
	b, at := w.m.takeBuffer(), time.Unix(0, n.batch.at)
	defer w.m.giveBuffer(b)
	s := w.sources[n.batch.stream]
	notice := to.notice(b[:0], at)
	entries, _ := appendEntries(notice, w.journal.mem[s.done.Load():n.batch.to], at, s.n, true)
	written := 0
	if to.id == n.log {
		written = to.has(entries, n.batch.size)
	}
	_ = fault.At("monitor.takeover.before")
	to.write(entries, len(notice), written)
	_ = fault.At("monitor.takeover.after")
	f.dropped = to.dropped
	n.log, n.dropped, n.torn, n.excess = f.id, f.dropped, f.torn, to.excess
	w.brought(&n)
	f.excess = n.excess
	return f
}

func openUp(l *wire.Log, was fileID, ended bool) (*logFile, error) {
	if ended {
		return openLogThatWas(l, was)
	}
	return openLog(l)
}

// openLogThatWas opens the log that was last written to, under whatever name in its directory. Where another is at its
// path, that is another container's by now, or was put there.
func openLogThatWas(l *wire.Log, was fileID) (*logFile, error) {
	f, err := openLogBy(l, 0)
	if err == nil && (was == fileID{} || f.id == was) {
		return f, nil
	}
	if err == nil {
		f.close()
		err = fmt.Errorf("open log %s below %s: another file is there", l.Path, l.Dir)
	}
	if f = findLog(l, was); f == nil {
		return nil, err
	}
	return f, nil
}

// has is how many bytes of entries are in the log from an offset on. An entry that is cut off, and has something of
// another behind it, is not.
func (l *logFile) has(entries []byte, from int64) (n int) {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(l.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return int(max(0, min(l.sizeAt(time.Now())-from, int64(len(entries)))))
	}
	defer unix.Close(fd)
	buf := make([]byte, page)
	for n < len(entries) {
		got, err := unix.Pread(fd, buf, from+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil || got == 0 {
			break
		}
		same := 0
		for same < got && n < len(entries) && buf[same] == entries[n] {
			same, n = same+1, n+1
		}
		if same < got {
			return bytes.LastIndexByte(entries[:n], '\n') + 1
		}
	}
	return n
}

// findLog opens a log that has another name in its directory by now; nil where it is not there.
func findLog(l *wire.Log, id fileID) *logFile {
	root, err := unix.Open(l.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(root)
	how := &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: logResolve}
	fd, err := openat2(root, filepath.Dir(l.Path), how)
	if err != nil {
		return nil
	}
	dir := os.NewFile(uintptr(fd), l.Path)
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(64)
		for _, name := range names {
			if f := openExisting(l, fd, name, id); f != nil {
				return f
			}
		}
		if err != nil {
			return nil
		}
	}
}

// openExisting opens a log by its name, if it is that file.
func openExisting(l *wire.Log, dir int, name string, id fileID) *logFile {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || idOf(&st) != id || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	how := &unix.OpenHow{Flags: logFlags, Resolve: logResolve}
	fd, err := openat2(dir, name, how)
	if err != nil {
		return nil
	}
	if unix.Fstat(fd, &st) != nil || idOf(&st) != id {
		_ = unix.Close(fd)
		return nil
	}
	return openedLog(l, fd, &st)
}
