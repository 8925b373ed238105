package cgroup

import "slices"

// unlimitedV1 is what v1 says where there is no limit: the most that fits, rounded down to a page.
const unlimitedV1 = 1 << 62

// v1 reads the controllers of one v1 hierarchy.
func (r *reader) v1(controllers []string, extent Extent, u *Usage) {
	for _, c := range controllers {
		switch c {
		case "cpuacct":
			r.cpuacctV1(extent, u)
		case "cpu":
			if extent == Everything {
				r.cpuV1(u)
			}
		case "memory":
			r.memoryV1(extent, u)
		case "pids":
			r.pids(extent, u)
		case "blkio":
			if extent == Everything {
				r.blkioV1(u)
			}
		case "hugetlb":
			if extent == Everything {
				r.hugeV1(u)
			}
		}
	}
}

func (r *reader) cpuacctV1(extent Extent, u *Usage) {
	u.CPU.Usage, u.CPU.Known = r.number("cpuacct.usage")
	if extent == Everything {
		u.CPU.User, _ = r.number("cpuacct.usage_user")
		u.CPU.System, _ = r.number("cpuacct.usage_sys")
	}
}

func (r *reader) cpuV1(u *Usage) {
	for key, value := range Fields(r.file("cpu.stat")) {
		switch string(key) {
		case "nr_periods":
			u.CPU.Periods = value
		case "nr_throttled":
			u.CPU.Throttled = value
		case "throttled_time":
			u.CPU.ThrottledTime = value
		}
	}
	u.CPU.Shares, _ = r.number("cpu.shares")
	u.CPU.Period, _ = r.number("cpu.cfs_period_us")
	var limited bool
	if u.CPU.Quota, limited = r.number("cpu.cfs_quota_us"); !limited { // -1
		u.CPU.Quota = Unlimited
	}
}

func (r *reader) memoryV1(extent Extent, u *Usage) {
	m := &u.Memory
	if m.Usage, m.Known = r.number("memory.usage_in_bytes"); !m.Known {
		return
	}
	for key, value := range Fields(r.file("memory.stat")) {
		switch string(key) {
		case "total_cache":
			m.Cache = value
		case "total_rss":
			m.RSS = value
		case "total_mapped_file":
			m.Mapped = value
		case "total_pgfault":
			m.Faults = value
		case "total_pgmajfault":
			m.MajorFaults = value
		case "pgfault":
			m.OwnFaults, m.OwnKnown = value, true
		case "pgmajfault":
			m.OwnMajor = value
		case "total_inactive_file":
			m.Inactive = value
		case "total_active_file":
			m.Active = value
		case "total_swap":
			u.Swap.Usage, u.Swap.Known = value, true
		}
	}
	m.WorkingSet = subtract(m.Usage, m.Inactive)
	m.Limit = r.limitV1("memory.limit_in_bytes")
	if u.Swap.Known {
		u.Swap.Limit = Unlimited
		u.Swap.Both = r.limitV1("memory.memsw.limit_in_bytes")
		if u.Swap.Both != Unlimited && m.Limit != Unlimited {
			u.Swap.Limit = subtract(u.Swap.Both, m.Limit)
		}
	}
	if extent != Everything {
		return
	}
	m.Kernel, _ = r.number("memory.kmem.usage_in_bytes")
	m.Peak, _ = r.number("memory.max_usage_in_bytes")
	m.LimitHits, _ = r.number("memory.failcnt")
	if n := r.limitV1("memory.soft_limit_in_bytes"); n != Unlimited {
		m.Reserved = n
	}
	for key, value := range Fields(r.file("memory.oom_control")) {
		if string(key) == "oom_kill" {
			m.OOMKills = value
		}
	}
}

func (r *reader) limitV1(name string) uint64 {
	n, ok := r.number(name)
	if !ok || n >= unlimitedV1 {
		return Unlimited
	}
	return n
}

// pids is the same on v1 and v2.
func (r *reader) pids(extent Extent, u *Usage) {
	u.Tasks.Current, u.Tasks.Known = r.number("pids.current")
	if extent == Everything {
		u.Tasks.Max, _ = r.number("pids.max")
	}
}

// blkioV1 reads lines such as "8:0 Read 4096".
func (r *reader) blkioV1(u *Usage) {
	for line := range lines(r.file("blkio.throttle.io_service_bytes_recursive")) {
		if d, op, n := u.deviceOf(line); d != nil {
			switch string(op) {
			case "Read":
				d.ReadBytes = n
			case "Write":
				d.WriteBytes = n
			case "Discard":
				d.DiscardBytes = n
			}
		}
	}
	for line := range lines(r.file("blkio.throttle.io_serviced_recursive")) {
		if d, op, n := u.deviceOf(line); d != nil {
			switch string(op) {
			case "Read":
				d.Reads = n
			case "Write":
				d.Writes = n
			case "Discard":
				d.Discards = n
			}
		}
	}
}

// deviceOf is the device that a line of blkio is about, nil when it is about none.
func (u *Usage) deviceOf(line []byte) (d *Device, op []byte, n uint64) {
	name, rest := word(line)
	op, rest = word(rest)
	major, minor, ok := deviceNumber(name)
	n, valid := number(rest)
	if !ok || !valid {
		return nil, nil, 0
	}
	return u.device(major, minor), op, n
}

// device is the entry of a device, made when there is none.
func (u *Usage) device(major, minor uint32) *Device {
	i := slices.IndexFunc(u.Devices, func(d Device) bool { return d.Major == major && d.Minor == minor })
	if i < 0 {
		i = len(u.Devices)
		u.Devices = append(u.Devices, Device{Major: major, Minor: minor})
	}
	return &u.Devices[i]
}

func (r *reader) hugeV1(u *Usage) {
	for _, size := range hugeSizes() {
		used, ok := r.number("hugetlb." + size + ".usage_in_bytes")
		if !ok {
			continue
		}
		most, _ := r.number("hugetlb." + size + ".max_usage_in_bytes")
		u.Huge = append(u.Huge, Huge{size, used, most})
	}
}
