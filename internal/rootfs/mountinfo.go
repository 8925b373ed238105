package rootfs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountEntry is a line of mountinfo.
type mountEntry struct {
	id            int
	point         string
	shared, slave bool
}

func mountTable() ([]mountEntry, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []mountEntry
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 7 {
			continue
		}
		e := mountEntry{point: unescape(fields[4])}
		if e.id, err = strconv.Atoi(fields[0]); err != nil {
			continue
		}
		for _, opt := range fields[6:] {
			if opt == "-" {
				break
			}
			e.shared = e.shared || strings.HasPrefix(opt, "shared:")
			e.slave = e.slave || strings.HasPrefix(opt, "master:")
		}
		out = append(out, e)
	}
	return out, lines.Err()
}

// unescape undoes what the kernel does to blanks and backslashes in mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// unmountBelow takes away all mounts at path or below it, the last made first.
func unmountBelow(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	table, err := mountTable()
	if err != nil {
		return err
	}
	for _, e := range slices.Backward(table) {
		if e.point == path || strings.HasPrefix(e.point, path+"/") {
			if err := Unmount(e.point); err != nil {
				return err
			}
		}
	}
	return nil
}

// Source is where a volume of the host really is, all links followed, as a mount's source must be; fs.ErrNotExist when
// it is not there.
func Source(hostPath string) (string, error) {
	if !filepath.IsAbs(hostPath) {
		return "", fmt.Errorf("host path %q: it must be absolute", hostPath)
	}
	return filepath.EvalSymlinks(hostPath)
}

// HostMounts is the table of mounts, for the volumes of one container: it is read when it is first needed, and again
// for a mount that it does not know yet.
type HostMounts struct{ byID map[int]mountEntry }

// find is the mount of this id; nil when this process does not see it.
func (h *HostMounts) find(id int) (*mountEntry, error) {
	if e, ok := h.byID[id]; ok {
		return &e, nil
	}
	table, err := mountTable()
	if err != nil {
		return nil, err
	}
	h.byID = make(map[int]mountEntry, len(table))
	for _, e := range table {
		h.byID[e.id] = e
	}
	if e, ok := h.byID[id]; ok {
		return &e, nil
	}
	return nil, nil
}

// CheckPropagation says why mounts cannot pass between the host and a container that mounts source: the mount that
// source is on must be shared for both directions, shared or slave for the one into the container.
func (h *HostMounts) CheckPropagation(source string, bothWays bool) error {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, source, 0, unix.STATX_MNT_ID, &st); err != nil {
		return &os.PathError{Op: "statx", Path: source, Err: err}
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return errors.New("the kernel does not tell which mount a path is on: it must be 5.8 or newer")
	}
	e, err := h.find(int(st.Mnt_id))
	switch {
	case err != nil:
		return err
	case e == nil:
		return fmt.Errorf("%s is on a mount that this process does not see", source)
	case e.shared || e.slave && !bothWays:
		return nil
	}
	lacks := "neither shared nor slave"
	if bothWays {
		lacks = "not shared"
	}
	return fmt.Errorf("%s is on the mount %s, which is %s: run mount --make-shared %s", source, e.point, lacks, e.point)
}
