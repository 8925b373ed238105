package kubelet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupRoot is where cgroups are mounted: one hierarchy on v2, one for each controller on v1.
const cgroupRoot = "/sys/fs/cgroup"

func unified() bool {
	var st unix.Statfs_t
	return unix.Statfs(cgroupRoot, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// LimitProcesses makes the cgroup of a pod and limits its processes, as a kubelet does with podPidsLimit.
func LimitProcesses(group string, most int) error {
	dir, err := makeCgroup(group, "pids")
	if err != nil {
		return err
	}
	return set(dir, "pids.max", strconv.Itoa(most))
}

// Weigh makes the cgroup of all pods and those above it, and gives each the share of the processors that a kubelet
// gives to its own, kubepods: 1024 for each processor. With the 1024 of a new group all pods together weigh as much
// as a single process outside.
func Weigh(group string) error {
	shares := 1024 * runtime.NumCPU()
	for at := group; at != "/" && at != "."; at = filepath.Dir(at) {
		dir, err := makeCgroup(at, "cpu")
		if err != nil {
			return err
		}
		if unified() { // as kubelets convert it, KEP-2254
			err = set(dir, "cpu.weight", strconv.Itoa(1+(shares-2)*9999/262142))
		} else {
			err = set(dir, "cpu.shares", strconv.Itoa(shares))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// LimitProcessors makes a cgroup whose processes together get so much of processors: 1 is one of them.
func LimitProcessors(group string, processors float64) error {
	dir, err := makeCgroup(group, "cpu")
	if err != nil {
		return err
	}
	const period = 100_000
	quota := int(processors * period)
	if unified() {
		return set(dir, "cpu.max", fmt.Sprintf("%d %d", quota, period))
	}
	return errors.Join(set(dir, "cpu.cfs_period_us", strconv.Itoa(period)),
		set(dir, "cpu.cfs_quota_us", strconv.Itoa(quota)))
}

// ProcessorTime is what the processes of a cgroup have used, in seconds.
func ProcessorTime(group string) (float64, error) {
	if !unified() {
		data, err := os.ReadFile(filepath.Join(cgroupRoot, "cpuacct", group, "cpuacct.usage"))
		if err != nil {
			return 0, fmt.Errorf("read processor time: %w", err)
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		return float64(ns) / 1e9, err
	}
	data, err := os.ReadFile(filepath.Join(cgroupRoot, group, "cpu.stat"))
	if err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	var us int64
	if _, err := fmt.Sscanf(string(data), "usage_usec %d", &us); err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	return float64(us) / 1e6, nil
}

// CountProcessorTime moves a process into a cgroup below that of a runtime's pods, so that ProcessorTime of that one is
// of the process, of all that it starts, and of the pods.
func CountProcessorTime(pods string, pid int) error {
	controller := "cpuacct"
	if unified() {
		controller = "cpu"
	}
	dir, err := makeCgroup(filepath.Join(pods, "daemon"), controller)
	if err != nil {
		return err
	}
	return set(dir, "cgroup.procs", strconv.Itoa(pid))
}

// makeCgroup makes a cgroup in which a controller works, and returns its directory.
func makeCgroup(group, controller string) (string, error) {
	if !unified() {
		dir := filepath.Join(cgroupRoot, controller, group)
		return dir, os.MkdirAll(dir, 0o755)
	}
	dir := cgroupRoot
	for part := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
		if err := set(dir, "cgroup.subtree_control", "+"+controller); err != nil {
			return "", err
		}
		dir = filepath.Join(dir, part)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", fmt.Errorf("make cgroup: %w", err)
		}
	}
	return dir, nil
}

func set(dir, file, value string) error {
	if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644); err != nil {
		return fmt.Errorf("limit cgroup: %w", err)
	}
	return nil
}
