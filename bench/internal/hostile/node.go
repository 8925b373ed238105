package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/bench/internal/disk"
	"berth/bench/internal/kubelet"
	"berth/bench/internal/report"
)

// node is the file systems of one runtime, all empty at first.
type node struct {
	runtime string
	group   string // the cgroup above all pods
	disks   []volume
}

// volume is a file system that may become full.
type volume struct {
	name, dir string
	disk      *disk.Disk // nil for /run, which is there already
}

// The sizes of the file systems: the disks are sparse files.
const (
	rootBytes = 20 << 30
	logBytes  = 10 << 30
	runBytes  = 128 << 20
)

// furnish mounts the disks of a runtime's root and of the pods' logs, and has /run be as small as on a small node.
func furnish(dir, runtime, group string) (*node, error) {
	n := &node{runtime: runtime, group: group}
	if err := unix.Mount("", "/run", "", unix.MS_REMOUNT, fmt.Sprintf("mode=755,size=%d", runBytes)); err != nil {
		return nil, fmt.Errorf("bound /run: %w", err)
	}
	for _, v := range []struct {
		name, dir string
		size      int64
	}{
		{"the disk of roots", filepath.Join(dir, runtime), rootBytes},
		{"the disk of logs", filepath.Join(dir, "pods"), logBytes},
	} {
		d, err := disk.Ext4(v.dir, v.size)
		if err != nil {
			return nil, errors.Join(err, n.close())
		}
		n.disks = append(n.disks, volume{v.name, v.dir, d})
	}
	n.disks = append(n.disks, volume{"/run", "/run", nil})
	return n, nil
}

func (n *node) close() error {
	var errs []error
	for _, v := range n.disks {
		if v.disk != nil {
			errs = append(errs, v.disk.Close())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(filepath.Join("/run", n.runtime)))...)
}

// fullness is the most that was used of a file system, in percent of its bytes or its inodes.
type fullness struct {
	name  string
	share float64
}

// watch looks at how full the file systems are until it is stopped.
func (n *node) watch() (stop func() []fullness) {
	const tick = 100 * time.Millisecond
	found := make([]fullness, len(n.disks))
	ctx, cancel := context.WithCancel(context.Background())
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for ctx.Err() == nil {
			for i, v := range n.disks {
				found[i] = fullness{v.name, max(found[i].share, usedShare(v.dir))}
			}
			_ = pause(ctx, tick)
		}
	})
	return func() []fullness {
		cancel()
		watcher.Wait()
		return found
	}
}

func usedShare(dir string) float64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || st.Blocks == 0 || st.Files == 0 {
		return 0
	}
	return 100 * max(1-float64(st.Bfree)/float64(st.Blocks), 1-float64(st.Ffree)/float64(st.Files))
}

// work is what was done until now.
type work struct {
	at      time.Time
	cpu     float64 // seconds
	written int64
}

func (n *node) work(group string) work {
	w := work{at: time.Now()}
	w.cpu, _ = kubelet.ProcessorTime(group)
	for _, v := range n.disks {
		if v.disk != nil {
			bytes, _ := v.disk.Written()
			w.written += bytes
		}
	}
	return w
}

// cpuSince is in milliseconds a second.
func (w work) cpuSince(before work) float64 {
	return 1000 * (w.cpu - before.cpu) / w.at.Sub(before.at).Seconds()
}

// writtenSince is in mebibytes a second.
func (w work) writtenSince(before work) float64 {
	return float64(w.written-before.written) / (1 << 20) / w.at.Sub(before.at).Seconds()
}

// The things that pods and containers may leave, in the order of the report.
var kinds = []struct{ name, unit string }{
	{"processes", report.Count}, {"mounts", report.Count}, {"network links", report.Count},
	{"network namespaces", report.Count}, {"cgroups", report.Count}, {"on the disk of roots", report.Mebibytes},
	{"on the disk of logs", report.Mebibytes}, {"on /run", report.Mebibytes},
}

// things is how many there are, by the names of kinds.
type things map[string]float64

// look counts what there is in the namespaces of this program, of which nobody else makes use.
func (n *node) look() (things, error) {
	t := things{"cgroups": float64(cgroupsBelow(n.group))}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			t["processes"]++
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	t["mounts"] = float64(bytes.Count(mounts, []byte("\n")))
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list network links: %w", err)
	}
	t["network links"] = float64(len(links))
	pinned, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	t["network namespaces"] = float64(len(pinned))
	for _, v := range n.disks {
		var st unix.Statfs_t
		if err := unix.Statfs(v.dir, &st); err != nil {
			return nil, err
		}
		t["on "+v.name] = float64(int64(st.Blocks-st.Bfree)*st.Bsize) / (1 << 20)
	}
	return t, nil
}

// cgroupsBelow counts the directories below a cgroup in every hierarchy.
func cgroupsBelow(group string) int {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/" + strings.Trim(group, "/"))
	count := 0
	for _, root := range append(roots, filepath.Join("/sys/fs/cgroup", group)) {
		_ = filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				count++
			}
			return nil
		})
	}
	return count
}

// left adds what is there, ten seconds after the last removal at most, and was not before the neighbours.
func (s *Suite) left(n *node, clean things, hostile bool) error {
	const patience = 10 * time.Second
	deadline := time.Now().Add(patience)
	for {
		now, err := n.look()
		if err != nil {
			return err
		}
		late := time.Now().After(deadline)
		more := 0
		for _, k := range kinds {
			if k.unit == report.Count && now[k.name] > clean[k.name] {
				more++
			}
		}
		if more > 0 && !late {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		for _, k := range kinds {
			s.note(n.runtime, hostile, "left: "+k.name, k.unit, max(0, now[k.name]-clean[k.name]))
		}
		return nil
	}
}
