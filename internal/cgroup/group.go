package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pollSlice is how long WaitEmpty sleeps in the kernel before it looks at its context again. A group that becomes empty
// ends the sleep at once.
const pollSlice = 50 * time.Millisecond

// Unified returns the mount point of the host's own cgroup2 hierarchy, or "" where it has none.
func Unified() string {
	switch Mode() {
	case V2:
		return root
	case Hybrid:
		return unified
	}
	return ""
}

// Tracking returns the mount point of a cgroup2 hierarchy in which tracking groups can be made: the host's own, or one
// that it mounts at <state>/cgroup2 where the host has none. Calling it again returns the same.
func Tracking(state string) (string, error) {
	return tracking([]string{root, unified, filepath.Join(state, "cgroup2")})
}

// tracking returns the first of the candidates that is a cgroup2 mount, and makes the last one such a mount if none is.
func tracking(candidates []string) (string, error) {
	for _, dir := range candidates {
		if isCgroup2(dir) {
			return dir, nil
		}
	}
	dir := candidates[len(candidates)-1]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the mount point of the tracking cgroups: %w", err)
	}
	if err := mountCgroup2(dir); err != nil {
		return "", fmt.Errorf("mount cgroup2 at %s, which tracks helper processes: %w", dir, err)
	}
	return dir, nil
}

// mountCgroup2 mounts the hierarchy with the options that it has where it is mounted already, be it in the mount
// namespace of the machine's first process. They are the hierarchy's, not the mount's: a mount that names none takes
// nsdelegate from all of them (cgroup-v2.rst, Mounting).
func mountCgroup2(dir string) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, process := range []string{"self", "1"} {
		data, err := os.ReadFile("/proc/" + process + "/mountinfo")
		if err != nil {
			continue
		}
		options := cgroup2Options(string(data))
		if options != "" && unix.Mount("berth", dir, "cgroup2", flags, options) == nil {
			return nil
		}
	}
	return unix.Mount("berth", dir, "cgroup2", flags, "")
}

// cgroup2Options are the options of the cgroup2 hierarchy in a mountinfo file, "" where there are none.
func cgroup2Options(mountinfo string) string {
	for line := range strings.Lines(mountinfo) {
		_, after, _ := strings.Cut(line, " - cgroup2 ")
		if fields := strings.Fields(after); len(fields) == 2 {
			if options := slices.DeleteFunc(strings.Split(fields[1], ","), isAccess); len(options) > 0 {
				return strings.Join(options, ",")
			}
		}
	}
	return ""
}

func isCgroup2(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// Group is one tracking group. Its methods may be called at any time and in any order, also when the group is gone.
type Group struct{ path string }

// Make makes the group name, which may have slashes, below root. A group that is there already is made anew where
// nothing is in it, so one that nobody has begun to use must not be made by another at the same time, and returned as
// it is otherwise.
//
// Since Linux 6.14, and the stable releases of that time, a process that is born into a group that was ever ended by
// cgroup.kill is killed at once: the kernel compares how often that was done to its group with how often to its
// parent's, and not to its own group, before and after the birth (cgroup_css_set_fork, cgroup_post_fork). A group can
// be left like that by a daemon that was killed before it could remove it, and by whoever else has killed what was in
// it.
func Make(root, name string) (*Group, error) {
	if !filepath.IsLocal(name) {
		return nil, fmt.Errorf("make cgroup %q: the name leaves %s", name, root)
	}
	path := filepath.Join(root, name)
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrExist) && unix.Rmdir(path) == nil {
		err = os.Mkdir(path, 0o755)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
		err = os.MkdirAll(path, 0o755)
	}
	if err != nil {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	return &Group{path}, nil
}

// At returns the group whose directory is path. It does not look whether there is one.
func At(path string) *Group { return &Group{path} }

// Path is the group's directory.
func (g *Group) Path() string { return g.path }

// Open opens the group's directory, for SysProcAttr.CgroupFD.
func (g *Group) Open() (*os.File, error) {
	f, err := os.OpenFile(g.path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return f, nil
}

// Pids lists the processes of this group and of those below it. Zombies do not count. A group that is gone has none.
func (g *Group) Pids() ([]int, error) { return Pids(g.path) }

// Kill sends SIGKILL to every process of this group and of those below it, also to those that are being forked
// meanwhile. Where these groups are frozen by their own state of the v1 freezer, it ends that, so that they die. It
// does not wait for them to die: WaitEmpty does. It is nil when nothing is there.
func (g *Group) Kill() error {
	if err := g.killAll(); err != nil {
		return err
	}
	return thaw(g.path)
}

func (g *Group) killAll() error {
	err := Write(filepath.Join(g.path, "cgroup.kill"), "1")
	switch {
	case err == nil, gone(g.path, err):
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		// Before kernel 5.14 there is no such file, and a file cannot be created here.
		return g.killEach()
	}
	return fmt.Errorf("kill cgroup: %w", err)
}

// killEach signals each process until a pass over the group meets no process that it had not signalled. A process with
// SIGKILL pending cannot fork, so a pass without a new process is the last that is needed.
func (g *Group) killEach() error {
	seen := map[int]bool{}
	for fresh := true; fresh; {
		pids, err := g.Pids()
		if err != nil {
			return fmt.Errorf("kill cgroup: %w", err)
		}
		fresh = false
		for _, pid := range pids {
			fresh = fresh || !seen[pid]
			seen[pid] = true
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
				return fmt.Errorf("kill process %d of cgroup %s: %w", pid, g.path, err)
			}
		}
	}
	return nil
}

// WaitEmpty returns nil once no process is left in this group and those below it, or the error of ctx.
func (g *Group) WaitEmpty(ctx context.Context) error {
	f, err := os.Open(filepath.Join(g.path, "cgroup.events"))
	if err != nil {
		if gone(g.path, err) {
			return nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			return g.pollEmpty(ctx) // a group of a v1 hierarchy tells of no events
		}
		return fmt.Errorf("watch cgroup: %w", err)
	}
	defer f.Close()
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}}
	buf := make([]byte, 256)
	for {
		n, err := f.ReadAt(buf, 0) // reading also arms the next poll
		if n == 0 && err != nil {
			if errors.Is(err, unix.ENODEV) {
				return nil // removed under us, which only an empty group can be
			}
			return fmt.Errorf("watch cgroup: %w", err)
		}
		if bytes.Contains(buf[:n], []byte("populated 0")) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for cgroup %s to become empty: %w", g.path, context.Cause(ctx))
		}
		if _, err := unix.Poll(fds, int(pollSlice/time.Millisecond)); err != nil && err != unix.EINTR {
			return fmt.Errorf("watch cgroup: %w", err)
		}
	}
}

// pollEmpty looks again and again until no process is left.
func (g *Group) pollEmpty(ctx context.Context) error {
	for {
		pids, err := g.Pids()
		if err != nil || len(pids) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for cgroup %s to become empty: %w", g.path, context.Cause(ctx))
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// Remove removes this group and those below it. It is nil when nothing is there, and an error that is unix.EBUSY when a
// process is left in one of them.
func (g *Group) Remove() error { return removeDirs(g.path) }

// removeDirs removes a tree of cgroup directories, children first. The files in them go with their directory.
func removeDirs(path string) error {
	err := unix.Rmdir(path)
	if err != unix.EBUSY && err != unix.ENOTEMPTY {
		return removed(path, err)
	}
	remove := func(above *os.File, name string) error {
		err := unix.Unlinkat(int(above.Fd()), name, unix.AT_REMOVEDIR)
		if err == unix.ENOENT {
			return nil
		}
		return err
	}
	below := false
	w := &walk{path: path, leave: remove}
	w.meet = func(above *os.File, name string) (into bool, err error) {
		below = true
		err = remove(above, name)
		if err == unix.EBUSY || err == unix.ENOTEMPTY {
			return true, nil
		}
		return false, err
	}
	if walkErr := w.run(); walkErr != nil {
		return fmt.Errorf("remove cgroup: %w", walkErr)
	}
	if below {
		err = unix.Rmdir(path)
	}
	return removed(path, err)
}

// removed is the outcome of a removal.
func removed(path string, err error) error {
	if err == nil || err == unix.ENOENT || err == unix.ENOTDIR {
		return nil
	}
	return &fs.PathError{Op: "remove cgroup", Path: path, Err: err}
}

// Pids lists the processes of the group at path, of any hierarchy, and of those below it. A group that is gone has
// none.
func Pids(path string) (pids []int, err error) {
	w := &walk{path: path, enter: func(w *walk) error {
		data, err := readProcs(w.dir, w.there())
		switch {
		case err == nil, errors.Is(err, unix.EOPNOTSUPP): // threaded: its processes are listed by the group above it
		case errors.Is(err, errGone):
			return nil
		default:
			return w.fail("read", procs, err)
		}
		for _, line := range bytes.Fields(data) {
			// A process of a pid namespace that is not ours shows as 0.
			if pid, err := strconv.Atoi(string(line)); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	}}
	if err := w.run(); err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	return pids, nil
}

// procs is the file of a group that lists its processes.
const procs = "cgroup.procs"

// formation is how long a group may be there without its files: a new one appears before they do. It is looked at so
// often at least: who stands still between two looks may see two groups being made, one after the other.
const formation, looks = 100 * time.Millisecond, 20

// errGone says that the group is not there. It is found out once: at the next look the group may have been made.
var errGone = errors.New("the group is gone")

// readProcs lists the processes of the group whose directory is open. there is a path from that directory which leads
// to it for as long as the group is there.
func readProcs(dir *os.File, there string) ([]byte, error) {
	end := time.Now().Add(formation)
	for look := 1; ; look++ {
		// seen before the read: a daemon that stands still meanwhile reads once more
		last := look >= looks && time.Now().After(end)
		data, err := readAt(dir, procs)
		if errors.Is(err, unix.ENODEV) {
			return nil, errGone
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return data, err
		}
		if !isAt(dir, there) {
			return nil, errGone
		}
		if last {
			return data, err
		}
		time.Sleep(time.Millisecond)
	}
}

// isAt reports whether a path from an open directory leads to that directory. Another group may have its place by now.
func isAt(dir *os.File, path string) bool {
	var this, found unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), path, &found, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && unix.Fstat(int(dir.Fd()), &this) == nil && this.Dev == found.Dev && this.Ino == found.Ino
}

// gone reports whether err, of an access to a file of the group at path, came about because the group is not there. A
// path that leads through a file names no group.
func gone(path string, err error) bool {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOTDIR) {
		return true
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	_, statErr := os.Lstat(path)
	return errors.Is(statErr, fs.ErrNotExist)
}
