package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// limitsV1 says what to write where in the hierarchies of v1, whose directories are by controller.
func limitsV1(dirs map[string]string, want *specs.LinuxResources) ([]setting, error) {
	w := writerV1{dirs: dirs}
	if c := want.CPU; c != nil {
		w.cpu(c)
	}
	if m := want.Memory; m != nil {
		w.memory(m)
	}
	if p := want.Pids; p != nil && p.Limit != nil {
		w.add("pids", "pids.max", orMax(pidsOrMax(*p.Limit)))
	}
	for _, h := range want.HugepageLimits {
		w.add("hugetlb", "hugetlb."+h.Pagesize+".limit_in_bytes", number(h.Limit))
		w.addIfThere("hugetlb", "hugetlb."+h.Pagesize+".rsvd.limit_in_bytes", number(h.Limit))
	}
	for key := range want.Unified {
		w.errs = append(w.errs, fmt.Errorf("%s is a setting of cgroup v2, and this host is on v1", key))
	}
	return w.out, errors.Join(w.errs...)
}

// pidsOrMax takes 0 for no limit, as OCI runtimes do.
func pidsOrMax(n int64) int64 {
	if n == 0 {
		return -1
	}
	return n
}

type writerV1 struct {
	dirs map[string]string
	out  []setting
	errs []error
}

func (w *writerV1) file(controller, name string) (string, bool) {
	dir := w.dirs[controller]
	return filepath.Join(dir, name), dir != ""
}

func (w *writerV1) add(controller, name, value string) {
	file, ok := w.file(controller, name)
	if !ok {
		w.errs = append(w.errs, fmt.Errorf("%s: this host has no controller %s", name, controller))
		return
	}
	w.out = append(w.out, setting{file, value})
}

func (w *writerV1) addIfThere(controller, name, value string) {
	if file, ok := w.file(controller, name); ok {
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			w.out = append(w.out, setting{file, value})
		}
	}
}

// now is the present value of a file, for deciding about an order; 0 when it cannot be read, which the write will say.
func (w *writerV1) now(controller, name string) float64 {
	file, _ := w.file(controller, name)
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	var n float64
	_, _ = fmt.Sscan(string(data), &n)
	return n
}

func (w *writerV1) cpu(c *specs.LinuxCPU) {
	if c.Shares != nil {
		w.add("cpu", "cpu.shares", number(*c.Shares))
	}
	period := func() { w.add("cpu", "cpu.cfs_period_us", number(*c.Period)) }
	quota := func() { w.add("cpu", "cpu.cfs_quota_us", number(*c.Quota)) }
	switch {
	case c.Period != nil && c.Quota != nil && w.quotaFirst(c):
		quota()
		period()
	default:
		if c.Period != nil {
			period()
		}
		if c.Quota != nil {
			quota()
		}
	}
	if c.Cpus != "" {
		w.add("cpuset", "cpuset.cpus", c.Cpus)
	}
	if c.Mems != "" {
		w.add("cpuset", "cpuset.mems", c.Mems)
	}
}

// quotaFirst chooses the order in which the processor time that is allowed between the two writes is the lesser: the
// cgroup above need not allow more than what is there before and after. No quota is always allowed, since the one above
// holds then.
func (w *writerV1) quotaFirst(c *specs.LinuxCPU) bool {
	oldQuota, oldPeriod := w.now("cpu", "cpu.cfs_quota_us"), w.now("cpu", "cpu.cfs_period_us")
	switch {
	case *c.Quota < 0:
		return true
	case oldQuota < 0, oldPeriod == 0:
		return false
	}
	return float64(*c.Quota)/oldPeriod < oldQuota/float64(*c.Period)
}

// memory may nowhere be limited to more than memory and swap together.
func (w *writerV1) memory(m *specs.LinuxMemory) {
	limit := func() { w.add("memory", "memory.limit_in_bytes", strconv.FormatInt(*m.Limit, 10)) }
	both := func() { w.add("memory", "memory.memsw.limit_in_bytes", strconv.FormatInt(*m.Swap, 10)) }
	switch {
	case m.Limit != nil && m.Swap != nil &&
		(*m.Swap < 0 || float64(*m.Swap) > w.now("memory", "memory.memsw.limit_in_bytes")):
		both()
		limit()
	default:
		if m.Limit != nil {
			limit()
		}
		if m.Swap != nil {
			both()
		}
	}
}
