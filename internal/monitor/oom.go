package monitor

import (
	"cmp"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
)

// oomCounter reads how many processes of a memory cgroup the kernel has killed for want of memory. The file is opened
// at the container's creation and read at its end.
type oomCounter struct {
	own, pod   int // descriptors, below zero when there is none
	was, wasUp uint64
	whole      bool // own is as old as the container: no monitor has missed anything
}

// watchOOM opens the counter of the container's memory cgroup, and that of the cgroup above it: a systemd scope may be
// gone when the container's end is seen, and its pod's is not. The process may be in a cgroup below the container's.
// sandbox is the container in whose sandbox this one is, whose cgroup is older than it, or "".
func watchOOM(pid int, id, sandbox string) oomCounter {
	c := oomCounter{own: -1, pod: -1}
	dir, file := memoryCgroup(pid)
	if dir == "" {
		return c
	}
	dir = ownedBy(dir, cmp.Or(sandbox, id))
	c.own = openCounter(dir, file)
	c.pod = openCounter(filepath.Dir(dir), file)
	if c.whole = c.own >= 0 && strings.Contains(filepath.Base(dir), id); !c.whole {
		c.was, _ = readCounter(c.own)
	}
	c.wasUp, _ = readCounter(c.pod)
	return c
}

// watchLeft opens the counter that a container has left whose process has ended and nobody has seen to, if it is there.
// dirs are those of its own cgroup in all hierarchies.
func (c *oomCounter) watchLeft(dirs []string, id string) {
	for _, dir := range dirs {
		if !strings.Contains(filepath.Base(dir), id) {
			continue
		}
		for _, file := range []string{eventsFile, controlFile} {
			if fd := openCounter(dir, file); fd >= 0 {
				c.close()
				*c = oomCounter{own: fd, pod: -1, whole: true}
				return
			}
		}
	}
}

// The files with the counter, of cgroup v2 and v1.
const eventsFile, controlFile = "memory.events", "memory.oom_control"

// ownedBy is the directory in dir's path that is named after the container, or dir where none is.
func ownedBy(dir, id string) string {
	for up := dir; len(up) > 1; up = filepath.Dir(up) {
		if strings.Contains(filepath.Base(up), id) {
			return up
		}
	}
	return dir
}

func openCounter(dir, file string) int {
	fd, err := unix.Open(filepath.Join(dir, file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// killed reports whether the kernel has killed one since the container was made.
func (c *oomCounter) killed() bool {
	if n, ok := readCounter(c.own); ok {
		return n > c.was
	}
	n, ok := readCounter(c.pod)
	return ok && n > c.wasUp
}

// explains reports whether an exit is the kernel's kill for want of memory.
func (c *oomCounter) explains(e wire.Exit) bool {
	return !e.Unknown && (e.Signal == int(unix.SIGKILL) || e.Code == 128+int32(unix.SIGKILL)) && c.killed()
}

func (c *oomCounter) close() {
	for _, fd := range []*int{&c.own, &c.pod} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

// readCounter reads the line `oom_kill N`, which memory.oom_control (v1) and memory.events (v2) both have.
func readCounter(fd int) (uint64, bool) {
	if fd < 0 {
		return 0, false
	}
	var buf [512]byte
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return 0, false
	}
	for _, line := range strings.Split(string(buf[:n]), "\n") {
		if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
			k, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
			return k, err == nil
		}
	}
	return 0, false
}

// memoryCgroup is the directory of the process's memory cgroup, and its file with the counter.
func memoryCgroup(pid int) (dir, file string) {
	if path, err := cgroup.PathOf(pid, "memory"); err == nil {
		return filepath.Join("/sys/fs/cgroup/memory", path), controlFile
	}
	if path, err := cgroup.PathOf(pid, ""); err == nil {
		return filepath.Join("/sys/fs/cgroup", path), eventsFile
	}
	return "", ""
}
