package spec

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// resources adds the limits of the request to what devices already decided.
func (b *build) resources() error {
	got, warnings, err := Resources(b.Container.GetLinux().GetResources(), b.Host)
	if err != nil {
		return err
	}
	got.Devices = b.out.Linux.Resources.Devices
	if got.Pids == nil && b.Handler.PidsLimit > 0 && got.Unified["pids.max"] == "" {
		got.Pids = &specs.LinuxPids{Limit: &b.Handler.PidsLimit}
	}
	b.out.Linux.Resources = got
	b.warnings = append(b.warnings, warnings...)
	return nil
}

// Resources turns the limits of a request into the OCI form, as Build does and as an update of a running container
// needs them. A zero is "not asked for". The warnings say what this host cannot limit.
func Resources(want *runtimeapi.LinuxContainerResources, host Host) (*specs.LinuxResources, []string, error) {
	out := &specs.LinuxResources{}
	var err error
	if out.CPU, err = cpuLimits(want); err != nil {
		return nil, nil, err
	}
	if out.Memory, err = memoryLimits(want); err != nil {
		return nil, nil, err
	}
	if err := unifiedLimits(want.GetUnified(), host, out); err != nil {
		return nil, nil, err
	}
	out.HugepageLimits = hugepageLimits(want)
	return out, TakeWhatIsLacking(out, host), nil
}

// TakeWhatIsLacking takes out of limits what this host cannot limit: a runtime would refuse the container. The warnings
// say what. A kubelet names every size of huge pages of the node with a limit of 0, so only a real limit is worth one.
func TakeWhatIsLacking(limits *specs.LinuxResources, host Host) (warnings []string) {
	if limits.Memory != nil && !host.SwapAccounting {
		limits.Memory.Swap = nil
	}
	limits.HugepageLimits = slices.DeleteFunc(limits.HugepageLimits, func(l specs.LinuxHugepageLimit) bool {
		lacking := !slices.Contains(host.HugepageSizes, l.Pagesize)
		if lacking && l.Limit != 0 {
			warnings = append(warnings, fmt.Sprintf("hugepages of %s not limited: this host has no hugetlb controller for them",
				l.Pagesize))
		}
		return lacking
	})
	return warnings
}

// cpuList is the form of cpusets in cpuset(7).
var cpuList = regexp.MustCompile(`^(\d+(-\d+)?(,\d+(-\d+)?)*)?$`)

// The kernel's bounds of a period of the CPU bandwidth controller, in microseconds; a quota has the same lower one. See
// Documentation/scheduler/sched-bwc.rst.
const (
	minPeriod = 1000
	maxPeriod = 1000000
)

func cpuLimits(want *runtimeapi.LinuxContainerResources) (*specs.LinuxCPU, error) {
	if want.GetCpuPeriod() < 0 || want.GetCpuShares() < 0 {
		return nil, fmt.Errorf("cpu_period %d, cpu_shares %d: neither can be negative", want.GetCpuPeriod(),
			want.GetCpuShares())
	}
	if p := want.GetCpuPeriod(); p != 0 && (p < minPeriod || p > maxPeriod) {
		return nil, fmt.Errorf("cpu_period %d: it is %d to %d microseconds", p, minPeriod, maxPeriod)
	}
	if q := want.GetCpuQuota(); q > 0 && q < minPeriod {
		return nil, fmt.Errorf("cpu_quota %d: it is at least %d microseconds, or -1 for no limit", q, minPeriod)
	}
	for name, set := range map[string]string{"cpuset_cpus": want.GetCpusetCpus(), "cpuset_mems": want.GetCpusetMems()} {
		if !cpuList.MatchString(set) {
			return nil, fmt.Errorf("%s %q is not a list such as 0-3,5", name, set)
		}
	}
	cpu := &specs.LinuxCPU{Cpus: want.GetCpusetCpus(), Mems: want.GetCpusetMems()}
	if v := want.GetCpuQuota(); v != 0 {
		cpu.Quota = &v
	}
	cpu.Period, cpu.Shares = nonZero(want.GetCpuPeriod()), nonZero(want.GetCpuShares())
	if *cpu == (specs.LinuxCPU{}) {
		return nil, nil
	}
	return cpu, nil
}

func nonZero(v int64) *uint64 {
	if v == 0 {
		return nil
	}
	u := uint64(v)
	return &u
}

// memoryLimits keeps a limited container out of swap unless the request gives it some: the OCI swap value counts memory
// and swap together, so equal values mean none.
func memoryLimits(want *runtimeapi.LinuxContainerResources) (*specs.LinuxMemory, error) {
	limit, swap := want.GetMemoryLimitInBytes(), want.GetMemorySwapLimitInBytes()
	if limit == 0 && swap == 0 {
		return nil, nil
	}
	if limit < -1 || swap < -1 {
		return nil, fmt.Errorf("memory_limit_in_bytes %d, memory_swap_limit_in_bytes %d: neither can be below -1, which is "+
			"no limit", limit, swap)
	}
	if limit > 0 && swap > 0 && swap < limit {
		return nil, fmt.Errorf("memory_swap_limit_in_bytes %d is below memory_limit_in_bytes %d: it counts memory and swap "+
			"together",
			swap, limit)
	}
	out := &specs.LinuxMemory{}
	if limit != 0 {
		out.Limit = &limit
	}
	if swap == 0 {
		swap = limit
	}
	if swap != 0 {
		out.Swap = &swap
	}
	return out, nil
}

func hugepageLimits(want *runtimeapi.LinuxContainerResources) (out []specs.LinuxHugepageLimit) {
	for _, l := range want.GetHugepageLimits() {
		out = append(out, specs.LinuxHugepageLimit{Pagesize: l.GetPageSize(), Limit: l.GetLimit()})
	}
	return out
}

// unifiedLimits passes raw cgroup v2 settings on. On v1 only pids.max has a counterpart.
func unifiedLimits(want map[string]string, host Host, out *specs.LinuxResources) error {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if !strings.Contains(key, ".") || strings.HasPrefix(key, "cgroup.") || strings.ContainsAny(key, "/\x00\n") {
			return fmt.Errorf("unified resource %q: it must name a setting of a controller, such as memory.high", key)
		}
		if host.CgroupV2 {
			continue
		}
		if key != "pids.max" {
			return fmt.Errorf("unified resource %s needs cgroup v2, and this host is on v1", key)
		}
		limit, err := pidsMax(want[key])
		if err != nil {
			return err
		}
		out.Pids = &specs.LinuxPids{Limit: &limit}
	}
	if host.CgroupV2 {
		out.Unified = maps.Clone(want) // the base spec and plugins add to it
	}
	return nil
}

func pidsMax(s string) (int64, error) {
	if s == "max" {
		return -1, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return 0, errors.New("unified resource pids.max: a positive number or max, not " + strconv.Quote(s))
	}
	return n, nil
}
