package cli

import (
	"math"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/go-units"
	"github.com/spf13/pflag"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// cpuPeriod is the time of which --cpus is a part, in microseconds, as Docker and a kubelet have it.
const cpuPeriod = 100_000

// resourceOptions are the flags about what a container may use, of berth run and berth update.
type resourceOptions struct {
	memory, swap  string
	cpus          string
	shares        int64
	cpuset, nodes string
	pids          int64
	oom           int64
}

func (o *resourceOptions) register(f *pflag.FlagSet) {
	f.StringVarP(&o.memory, "memory", "m", "", "memory limit, a `size` such as 512m or 2g, in powers of 1024")
	f.StringVar(&o.swap, "memory-swap", "", "limit of memory and swap together, a `size`; -1 is none")
	f.StringVar(&o.cpus, "cpus", "", "limit of processor time, in `processors`, such as 1.5")
	f.Int64VarP(&o.shares, "cpu-shares", "c", 0, "`weight` by which containers share scarce processor time (default 1024)")
	f.StringVar(&o.cpuset, "cpuset-cpus", "", "`processors` to run on: 0-3, or 0,2")
	f.StringVar(&o.nodes, "cpuset-mems", "", "memory `nodes` to use: 0, or 0,1")
	f.Int64Var(&o.pids, "pids-limit", 0, "limit of processes and threads, a `number`; -1 is none")
}

// linux is what the flags ask for; nil where they ask for nothing.
func (o *resourceOptions) linux() (*runtimeapi.LinuxContainerResources, error) {
	r := &runtimeapi.LinuxContainerResources{
		CpuShares: o.shares, CpusetCpus: o.cpuset, CpusetMems: o.nodes, OomScoreAdj: o.oom,
	}
	var err error
	if r.MemoryLimitInBytes, err = memorySize("--memory", o.memory); err != nil {
		return nil, err
	}
	if r.MemorySwapLimitInBytes, err = swapSize(o.swap); err != nil {
		return nil, err
	}
	if r.CpuQuota, err = quotaOf(o.cpus); err != nil {
		return nil, err
	}
	if r.CpuQuota != 0 {
		r.CpuPeriod = cpuPeriod
	}
	switch {
	case o.pids < 0:
		r.Unified = map[string]string{"pids.max": "max"}
	case o.pids > 0:
		r.Unified = map[string]string{"pids.max": strconv.FormatInt(o.pids, 10)}
	}
	if o.asks() {
		return r, nil
	}
	return nil, nil
}

// asks reports whether any of the flags was given.
func (o *resourceOptions) asks() bool { return *o != resourceOptions{} }

// memorySize reads a size as Docker does: the units of memory are powers of two, with or without an i in them.
func memorySize(flag, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	plain := text
	if n := len(text); n > 1 && strings.ContainsRune("kmgtpKMGTP", rune(text[n-2])) && text[n-1] == 'i' {
		plain += "B" // Kubernetes writes 512Mi
	}
	n, err := units.RAMInBytes(plain)
	if err != nil || n <= 0 {
		return 0, fail.New(errdefs.ErrInvalidArgument, "%s %s: want a size such as 512m or 2g", flag, text)
	}
	return n, nil
}

func swapSize(text string) (int64, error) {
	if text == "-1" {
		return -1, nil
	}
	return memorySize("--memory-swap", text)
}

// quotaOf is a number of processors as time in a period.
func quotaOf(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || n < 0.01 || n > 1e6 {
		return 0, fail.New(errdefs.ErrInvalidArgument, "--cpus %s: want a number of processors, 0.01 or more", text)
	}
	return int64(math.Round(n * cpuPeriod)), nil
}
