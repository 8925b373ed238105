package report

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what one must know of a machine to judge its numbers, and nothing that tells which machine it is.
type Machine struct {
	CPU       string  `json:"cpu"`
	Cores     int     `json:"cores"`
	MemoryGiB float64 `json:"memory_gib"`
	Kernel    string  `json:"kernel"`
	Cgroup    string  `json:"cgroup"`
	OS        string  `json:"os"`
	Go        string  `json:"go"`
}

func (m Machine) String() string {
	return fmt.Sprintf("%d cores (%s), %.0f GiB, Linux %s, %s, cgroup %s, %s", m.Cores, m.CPU, m.MemoryGiB, m.Kernel, m.OS,
		m.Cgroup, m.Go)
}

func thisMachine() (Machine, error) {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: "unknown", OS: "unknown", Cgroup: cgroupMode()}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("read kernel version: %w", err)
	}
	m.Kernel, _, _ = strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	m.CPU = value("/proc/cpuinfo", "model name", m.CPU)
	m.OS = strings.Trim(value("/etc/os-release", "PRETTY_NAME", m.OS), `"`)
	kib, err := strconv.ParseFloat(strings.TrimSuffix(value("/proc/meminfo", "MemTotal", "0"), " kB"), 64)
	if err != nil {
		return m, fmt.Errorf("read memory size: %w", err)
	}
	m.MemoryGiB = round(kib / (1 << 20))
	return m, nil
}

// value finds "key: value" or "key=value" in a file.
func value(path, key, otherwise string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return otherwise
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		at := strings.IndexAny(lines.Text(), ":=")
		if at > 0 && strings.TrimSpace(lines.Text()[:at]) == key {
			return strings.TrimSpace(lines.Text()[at+1:])
		}
	}
	return otherwise
}

func cgroupMode() string {
	var st unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		return "v2"
	}
	if unix.Statfs("/sys/fs/cgroup/unified", &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		return "v1 hybrid"
	}
	return "v1"
}
