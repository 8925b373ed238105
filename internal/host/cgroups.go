package host

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CgroupMode is how the host's control groups are mounted.
type CgroupMode string

// The three ways.
const (
	CgroupV1     CgroupMode = "v1"     // v1 hierarchies only
	CgroupHybrid CgroupMode = "hybrid" // v1 hierarchies with the controllers, and a cgroup2 beside them
	CgroupV2     CgroupMode = "v2"     // the unified hierarchy alone
)

// The cgroup drivers: who makes the cgroups of containers.
const (
	CgroupfsDriver = "cgroupfs"
	SystemdDriver  = "systemd"
)

// ChooseDriver notes the cgroup driver that the configuration asks for, or, when it asks for none, systemd where
// systemd is the init and cgroups are v2. There the tree is systemd's, and a second one who makes groups in it on his
// own has them changed under his hands.
func (f *Facts) ChooseDriver(configured string) error {
	can := f.Systemd && f.Cgroup == CgroupV2
	switch {
	case configured == SystemdDriver && !f.Systemd:
		return errors.New("cgroup_driver is systemd, and systemd is not the init of this machine (there is no " +
			"/run/systemd/system): set cgroupfs")
	case configured == SystemdDriver && !can:
		return fmt.Errorf("cgroup_driver is systemd, which Berth supports on cgroup v2 alone, and this host is on %s: set "+
			"cgroupfs, "+
			"or boot with systemd.unified_cgroup_hierarchy=1", f.Cgroup)
	case configured != "":
		f.CgroupDriver = configured
	case can:
		f.CgroupDriver = SystemdDriver
	default:
		f.CgroupDriver = CgroupfsDriver
	}
	return nil
}

const cgroupRoot = "/sys/fs/cgroup"

func cgroups(f *Facts) error {
	f.Cgroup = cgroupMode(cgroupRoot)
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		f.SwapAccounting = f.SwapAccounting || m.limitsSwap()
	}
	f.Controllers = controllers(f.Cgroup, mounts)
	if slices.Contains(f.Controllers, "hugetlb") {
		f.HugepageSizes, err = hugepageSizes("/sys/kernel/mm/hugepages")
	}
	return err
}

// Delegated reports whether the cgroup2 hierarchy is mounted with nsdelegate now. That is an option of the whole
// hierarchy, which anybody with a mount of it in the first cgroup namespace may change.
func Delegated() (bool, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return false, fmt.Errorf("read the options of the cgroup2 mount: %w", err)
	}
	return slices.ContainsFunc(mounts, func(m cgroupMount) bool {
		return m.v2 && slices.Contains(m.options, "nsdelegate")
	}), nil
}

// controllers are those that containers can have limits of. On a hybrid host the cgroup2 beside the v1 hierarchies has
// the controllers that none of these took; the runtimes leave it alone.
func controllers(mode CgroupMode, mounts []cgroupMount) []string {
	known := map[string]bool{}
	for _, m := range mounts {
		if m.v2 != (mode == CgroupV2) {
			continue
		}
		for _, c := range m.controllers() {
			known[c] = true
		}
	}
	return slices.Sorted(maps.Keys(known))
}

func cgroupMode(root string) CgroupMode {
	switch {
	case isFS(root, unix.CGROUP2_SUPER_MAGIC):
		return CgroupV2
	case isFS(filepath.Join(root, "unified"), unix.CGROUP2_SUPER_MAGIC):
		return CgroupHybrid
	}
	return CgroupV1
}

// cgroupMount is a mounted hierarchy.
type cgroupMount struct {
	path    string
	v2      bool
	options []string // of the file system: on v1 these are its controllers
}

// cgroupMounts are the hierarchies mounted below /sys/fs/cgroup.
func cgroupMounts() ([]cgroupMount, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var mounts []cgroupMount
	for l := range strings.Lines(string(data)) {
		left, right, _ := strings.Cut(l, " - ")
		place, kind := strings.Fields(left), strings.Fields(right)
		if len(place) < 5 || len(kind) < 3 || !strings.HasPrefix(kind[0], "cgroup") {
			continue
		}
		if path := place[4]; path == cgroupRoot || strings.HasPrefix(path, cgroupRoot+"/") {
			mounts = append(mounts, cgroupMount{path, kind[0] == "cgroup2", strings.Split(kind[2], ",")})
		}
	}
	return mounts, nil
}

func (m cgroupMount) controllers() []string {
	if m.v2 {
		text, _ := optional(filepath.Join(m.path, "cgroup.controllers")) // a mount that is hidden has none to use
		return strings.Fields(text)
	}
	var out []string
	for _, o := range m.options {
		if o != "rw" && o != "ro" && o != "xattr" && !strings.Contains(o, "=") {
			out = append(out, o)
		}
	}
	return out
}

// limitsSwap looks for the file that limits swap: on v2 it is in every group but the root.
func (m cgroupMount) limitsSwap() bool {
	if !m.v2 {
		return exists(filepath.Join(m.path, "memory.memsw.limit_in_bytes"))
	}
	found, _ := filepath.Glob(filepath.Join(m.path, "*", "memory.swap.max")) // the pattern is a good one
	return len(found) > 0
}

// hugepageSizes turns the kernel's folders (hugepages-2048kB) into the names of the hugetlb controller (2MB).
func hugepageSizes(dir string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "hugepages-*kB"))
	if err != nil {
		return nil, err
	}
	sizes := make([]uint64, 0, len(found))
	for _, path := range found {
		text := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "hugepages-"), "kB")
		kb, err := strconv.ParseUint(text, 10, 54)
		if err != nil {
			return nil, fmt.Errorf("huge page size %s: %w", path, err)
		}
		sizes = append(sizes, kb)
	}
	slices.Sort(sizes)
	var names []string
	for _, kb := range sizes {
		names = append(names, sizeName(kb))
	}
	return names, nil
}

func sizeName(kb uint64) string {
	switch {
	case kb >= 1<<20:
		return fmt.Sprintf("%dGB", kb>>20)
	case kb >= 1<<10:
		return fmt.Sprintf("%dMB", kb>>10)
	}
	return fmt.Sprintf("%dKB", kb)
}
