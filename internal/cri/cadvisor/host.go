package cadvisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/look"
)

// mostDescriptors bounds the descriptors of one container that are looked at to count its sockets. Of one with more
// they are not told.
const mostDescriptors = 10000

// Processes is what /proc tells of a container's processes.
type Processes struct {
	Count                uint64
	Descriptors, Sockets Count
	MaxOpenFiles         Count
}

// Count is a number that may not be known.
type Count struct {
	Known bool
	Count uint64
}

// CountProcesses reads what processes have open; init is the first of them. Those that end meanwhile are passed over.
func CountProcesses(pids []int, init int) *Processes {
	p := &Processes{Count: uint64(len(pids)), Descriptors: Count{Known: true}, Sockets: Count{Known: true},
		MaxOpenFiles: maxOpenFiles(init)}
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		if !p.add(openFiles(dir)) {
			break
		}
		if p.Sockets.Known {
			p.Sockets.Count += sockets(dir)
		}
	}
	return p
}

// add counts the descriptors of one process. It is false when there are so many in all that the next need not be looked
// at: where the kernel does not say how many there are, a container could have them counted for as long as it likes.
func (p *Processes) add(n uint64, told bool) bool {
	p.Descriptors.Count += n
	if p.Descriptors.Count > mostDescriptors {
		p.Sockets = Count{}
		p.Descriptors.Known = told
	}
	return p.Descriptors.Known
}

// openFiles is how many descriptors a process has; told says that the kernel (6.2 and later) says so by itself.
func openFiles(dir string) (n uint64, told bool) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, true
	}
	if st.Size > 0 {
		return uint64(st.Size), true
	}
	f, err := os.Open(dir)
	if err != nil {
		return 0, true
	}
	defer f.Close()
	names, err := f.Readdirnames(mostDescriptors + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, true
	}
	return uint64(len(names)), len(names) == 0 // which every kernel says
}

func sockets(dir string) (n uint64) {
	f, err := os.Open(dir)
	if err != nil {
		return 0
	}
	defer f.Close()
	names, _ := f.Readdirnames(mostDescriptors) // what was read before an error counts
	var link [16]byte
	for _, name := range names {
		got, err := unix.Readlinkat(int(f.Fd()), name, link[:])
		if err == nil && strings.HasPrefix(string(link[:got]), "socket:") {
			n++
		}
	}
	return n
}

// maxOpenFiles is the soft limit of a process's descriptors.
func maxOpenFiles(pid int) Count {
	f, err := os.Open(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return Count{}
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "Max open files"); ok {
			fields := strings.Fields(rest)
			if len(fields) == 0 {
				return Count{}
			}
			n, err := strconv.ParseUint(fields[0], 10, 64)
			return Count{Known: err == nil, Count: n}
		}
	}
	return Count{}
}

// containersDisk is what DiskOf looks at.
var containersDisk = look.NewDisk()

// DiskOf is the file system at dir; Used and At are for the caller to fill in. nil when it cannot be read, or does not
// answer.
func DiskOf(dir string) *Disk {
	d, err := look.Now(containersDisk, func() (*Disk, error) { return diskOf(dir) })
	if err != nil {
		return nil
	}
	return d
}

func diskOf(dir string) (*Disk, error) {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(unix.Statfs(dir, &fs), unix.Stat(dir, &st)); err != nil {
		return nil, err
	}
	return &Disk{
		Device: deviceName(unix.Major(st.Dev), unix.Minor(st.Dev)),
		Size:   fs.Blocks * uint64(fs.Bsize), Inodes: fs.Files, FreeInodes: fs.Ffree,
	}, nil
}

// knownFor is how long a device's name is believed: numbers are given out again, as those of loop devices and of disks
// that were taken out.
const knownFor = time.Minute

// knownDevice is a name and when it was read.
type knownDevice struct {
	name string
	at   time.Time
}

var deviceNames sync.Map // [2]uint32 to knownDevice; there are as many as the node ever had at a time, or a few more

// deviceName is the device's file, such as /dev/sda; empty for one that has none.
func deviceName(major, minor uint32) string { return nameAt(major, minor, time.Now(), os.Readlink) }

func nameAt(major, minor uint32, now time.Time, readlink func(string) (string, error)) string {
	key := [2]uint32{major, minor}
	if known, ok := deviceNames.Load(key); ok && now.Sub(known.(knownDevice).at) < knownFor {
		return known.(knownDevice).name
	}
	name := ""
	if target, err := readlink(fmt.Sprintf("/sys/dev/block/%d:%d", major, minor)); err == nil {
		name = "/dev/" + filepath.Base(target)
	}
	deviceNames.Store(key, knownDevice{name, now})
	return name
}
