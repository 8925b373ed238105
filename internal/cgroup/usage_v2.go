package cgroup

import "bytes"

// v2 reads a group of the one cgroup2 hierarchy.
func (r *reader) v2(extent Extent, u *Usage) {
	r.cpuV2(extent, u)
	r.memoryV2(extent, u)
	r.pids(extent, u)
	r.pressures(u)
	if extent == Everything {
		r.ioV2(u)
		r.hugeV2(u)
	}
}

// cpuV2 reads times that the kernel tells in microseconds.
func (r *reader) cpuV2(extent Extent, u *Usage) {
	for key, value := range Fields(r.file("cpu.stat")) {
		switch string(key) {
		case "usage_usec":
			u.CPU.Usage, u.CPU.Known = value*1000, true
		case "user_usec":
			u.CPU.User = value * 1000
		case "system_usec":
			u.CPU.System = value * 1000
		case "nr_periods":
			u.CPU.Periods = value
		case "nr_throttled":
			u.CPU.Throttled = value
		case "throttled_usec":
			u.CPU.ThrottledTime = value * 1000
		}
	}
	if extent != Everything {
		return
	}
	if weight, ok := r.number("cpu.weight"); ok && weight > 0 {
		u.CPU.Weight, u.CPU.Shares = weight, 2+(weight-1)*262142/9999 // 1 to 10000 stands for 2 to 262144
	}
	quota, period := word(bytes.TrimSpace(r.file("cpu.max")))
	u.CPU.Quota, _ = number(quota)
	u.CPU.Period, _ = number(period)
}

func (r *reader) memoryV2(extent Extent, u *Usage) {
	m := &u.Memory
	if m.Usage, m.Known = r.number("memory.current"); !m.Known {
		return
	}
	stat := r.file("memory.stat")
	var slab uint64
	for key, value := range Fields(stat) {
		switch string(key) {
		case "anon":
			m.RSS = value
		case "file":
			m.Cache = value
		case "kernel":
			m.Kernel = value
		case "slab":
			slab = value
		case "file_mapped":
			m.Mapped = value
		case "inactive_file":
			m.Inactive = value
		case "active_file":
			m.Active = value
		case "pgfault":
			m.Faults = value
		case "pgmajfault":
			m.MajorFaults = value
		}
	}
	m.OwnKnown, m.OwnFaults, m.OwnMajor = true, m.Faults, m.MajorFaults // v2 does not tell them apart
	if m.Kernel == 0 {
		m.Kernel = slab // before kernel 5.18
	}
	m.WorkingSet = subtract(m.Usage, m.Inactive)
	m.Limit = r.limitV2("memory.max")
	if u.Swap.Usage, u.Swap.Known = r.number("memory.swap.current"); u.Swap.Known {
		u.Swap.Limit = r.limitV2("memory.swap.max")
	}
	if extent != Everything {
		return
	}
	m.Peak, _ = r.number("memory.peak")
	m.Reserved, _ = r.number("memory.min")
	for key, value := range Fields(r.file("memory.events")) {
		switch string(key) {
		case "max":
			m.LimitHits = value
		case "oom_kill":
			m.OOMKills = value
		}
	}
}

func (r *reader) limitV2(name string) uint64 {
	n, ok := r.number(name)
	if !ok {
		return Unlimited
	}
	return n
}

// ioV2 reads lines such as "8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0".
func (r *reader) ioV2(u *Usage) {
	for line := range lines(r.file("io.stat")) {
		name, rest := word(line)
		major, minor, ok := deviceNumber(name)
		if !ok || len(rest) == 0 {
			continue
		}
		d := u.device(major, minor)
		for len(rest) > 0 {
			var pair []byte
			pair, rest = word(rest)
			key, value, ok := pairOf(pair)
			if !ok {
				continue
			}
			switch string(key) {
			case "rbytes":
				d.ReadBytes = value
			case "wbytes":
				d.WriteBytes = value
			case "rios":
				d.Reads = value
			case "wios":
				d.Writes = value
			case "dbytes":
				d.DiscardBytes = value
			case "dios":
				d.Discards = value
			}
		}
	}
}

// hugeV2 knows no peak: v2 keeps none.
func (r *reader) hugeV2(u *Usage) {
	for _, size := range hugeSizes() {
		if used, ok := r.number("hugetlb." + size + ".current"); ok {
			u.Huge = append(u.Huge, Huge{Size: size, Usage: used, Peak: used})
		}
	}
}
