package cadvisor

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"berth/internal/cgroup"
	"berth/internal/network"
)

// diskUsage is the one metric that may have been read a while ago.
const diskUsage = "container_fs_usage_bytes"

var families = slices.Concat(general, processor, memory, pressure, disk, interfaces, processes)

var general = []family{
	{"container_last_seen", "Last time a container was seen by the exporter", gauge, nil, func(s *Subject, add adder) {
		add(uint64(s.Usage.At.Unix()))
	}},
	{"container_start_time_seconds", "Start time of the container since unix epoch in seconds.", gauge, nil,
		func(s *Subject, add adder) {
			if !s.Began.IsZero() {
				add(uint64(s.Began.Unix()))
			}
		}},
}

var processor = []family{
	{"container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", counter, []string{"cpu"},
		func(s *Subject, add adder) {
			if s.Usage.CPU.Known {
				add(seconds(s.Usage.CPU.Usage), "total")
			}
		}},
	ofCPU("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", func(c *cgroup.CPU) uint64 {
		return seconds(c.User)
	}),
	ofCPU("container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.",
		func(c *cgroup.CPU) uint64 { return seconds(c.System) }),
	ofCPU("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.",
		func(c *cgroup.CPU) uint64 { return c.Periods }),
	ofCPU("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.",
		func(c *cgroup.CPU) uint64 { return c.Throttled }),
	ofCPU("container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.",
		func(c *cgroup.CPU) uint64 { return seconds(c.ThrottledTime) }),
	limitOf("container_spec_cpu_shares", "CPU share of the container.", func(u *cgroup.Usage) (uint64, bool) {
		return u.CPU.Shares, u.CPU.Shares > 0
	}),
	limitOf("container_spec_cpu_period", "CPU period of the container.", func(u *cgroup.Usage) (uint64, bool) {
		return u.CPU.Period, u.CPU.Period > 0
	}),
	limitOf("container_spec_cpu_quota", "CPU quota of the container.", func(u *cgroup.Usage) (uint64, bool) {
		return u.CPU.Quota, u.CPU.Quota > 0 && u.CPU.Quota != cgroup.Unlimited
	}),
}

var memory = []family{
	ofMemory("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it "+
		"was accessed", func(m *cgroup.Memory) uint64 { return m.Usage }),
	ofMemory("container_memory_working_set_bytes", "Current working set in bytes.", func(m *cgroup.Memory) uint64 {
		return m.WorkingSet
	}),
	limitOf("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes",
		func(u *cgroup.Usage) (uint64, bool) { return u.Memory.Peak, u.Memory.Known && u.Memory.Peak > 0 }),
	ofMemory("container_memory_rss", "Size of RSS in bytes.", func(m *cgroup.Memory) uint64 { return m.RSS }),
	ofMemory("container_memory_cache", "Number of bytes of page cache memory.", func(m *cgroup.Memory) uint64 {
		return m.Cache
	}),
	ofMemory("container_memory_mapped_file", "Size of memory mapped files in bytes.", func(m *cgroup.Memory) uint64 {
		return m.Mapped
	}),
	ofMemory("container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", func(m *cgroup.Memory) uint64 {
		return m.Kernel
	}),
	ofMemory("container_memory_total_active_file_bytes", "Current total active file in bytes.",
		func(m *cgroup.Memory) uint64 { return m.Active }),
	ofMemory("container_memory_total_inactive_file_bytes", "Current total inactive file in bytes.",
		func(m *cgroup.Memory) uint64 { return m.Inactive }),
	{"container_memory_swap", "Container swap usage in bytes.", gauge, nil, func(s *Subject, add adder) {
		if s.Usage.Swap.Known {
			add(s.Usage.Swap.Usage)
		}
	}},
	{"container_memory_failcnt", "Number of memory usage hits limits", counter, nil, func(s *Subject, add adder) {
		if s.Usage.Memory.Known {
			add(s.Usage.Memory.LimitHits)
		}
	}},
	{"container_memory_failures_total", "Cumulative count of memory allocation failures.", counter,
		[]string{"failure_type", "scope"}, func(s *Subject, add adder) {
			m := &s.Usage.Memory
			if m.Known && m.OwnKnown {
				add(m.OwnFaults, "pgfault", "container")
				add(m.OwnMajor, "pgmajfault", "container")
			}
			if m.Known {
				add(m.Faults, "pgfault", "hierarchy")
				add(m.MajorFaults, "pgmajfault", "hierarchy")
			}
		}},
	{"container_oom_events_total", "Count of out of memory events observed for the container", counter, nil,
		func(s *Subject, add adder) {
			if s.Usage.Memory.Known {
				add(s.Usage.Memory.OOMKills)
			}
		}},
	limitOf("container_spec_memory_limit_bytes", "Memory limit for the container.", func(u *cgroup.Usage) (uint64, bool) {
		return unlessUnlimited(u.Memory.Limit), u.Memory.Known
	}),
	limitOf("container_spec_memory_reservation_limit_bytes", "Memory reservation limit for the container.",
		func(u *cgroup.Usage) (uint64, bool) {
			return u.Memory.Reserved, u.Memory.Known
		}),
	limitOf("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.",
		func(u *cgroup.Usage) (uint64, bool) {
			return unlessUnlimited(cmp.Or(u.Swap.Both, u.Swap.Limit)), u.Swap.Known // as cAdvisor: v1 has both in one
		}),
	{"container_hugetlb_usage_bytes", "Current hugepage usage", gauge, []string{"pagesize"}, func(s *Subject, add adder) {
		for _, h := range s.Usage.Huge {
			add(h.Usage, h.Size)
		}
	}},
	{"container_hugetlb_max_usage_bytes", "Maximum hugepage usages recorded", gauge, []string{"pagesize"},
		func(s *Subject, add adder) {
			for _, h := range s.Usage.Huge {
				add(h.Peak, h.Size)
			}
		}},
}

var pressure = []family{
	waiting("container_pressure_cpu_waiting_seconds_total", "Total time duration tasks in the container have waited due "+
		"to CPU congestion.", func(u *cgroup.Usage) *cgroup.Pressure { return &u.CPUPressure }),
	stalled("container_pressure_cpu_stalled_seconds_total", "Total time duration no tasks in the container could make "+
		"progress due to CPU congestion.", func(u *cgroup.Usage) *cgroup.Pressure { return &u.CPUPressure }),
	waiting("container_pressure_memory_waiting_seconds_total", "Total time duration tasks in the container have waited "+
		"due to memory congestion.", func(u *cgroup.Usage) *cgroup.Pressure { return &u.MemoryPressure }),
	stalled("container_pressure_memory_stalled_seconds_total", "Total time duration no tasks in the container could "+
		"make progress due to memory congestion.", func(u *cgroup.Usage) *cgroup.Pressure { return &u.MemoryPressure }),
	waiting("container_pressure_io_waiting_seconds_total", "Total time duration tasks in the container have waited due "+
		"to IO congestion.", func(u *cgroup.Usage) *cgroup.Pressure { return &u.IOPressure }),
	stalled("container_pressure_io_stalled_seconds_total", "Total time duration no tasks in the container could make "+
		"progress due to IO congestion.", func(u *cgroup.Usage) *cgroup.Pressure { return &u.IOPressure }),
}

var disk = []family{
	ofDisk(diskUsage, "Number of bytes that are consumed by the container on this filesystem.", func(d *Disk) uint64 {
		return d.Used
	}),
	ofDisk("container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem.",
		func(d *Disk) uint64 { return d.Size }),
	ofDisk("container_fs_inodes_total", "Number of Inodes", func(d *Disk) uint64 { return d.Inodes }),
	ofDisk("container_fs_inodes_free", "Number of available Inodes", func(d *Disk) uint64 { return d.FreeInodes }),
	ofDevices("container_fs_reads_bytes_total", "Cumulative count of bytes read", func(d *cgroup.Device) uint64 {
		return d.ReadBytes
	}),
	ofDevices("container_fs_reads_total", "Cumulative count of reads completed", func(d *cgroup.Device) uint64 {
		return d.Reads
	}),
	ofDevices("container_fs_writes_bytes_total", "Cumulative count of bytes written", func(d *cgroup.Device) uint64 {
		return d.WriteBytes
	}),
	ofDevices("container_fs_writes_total", "Cumulative count of writes completed", func(d *cgroup.Device) uint64 {
		return d.Writes
	}),
	{"container_blkio_device_usage_total", "Blkio Device bytes usage", counter,
		[]string{"device", "major", "minor", "operation"}, func(s *Subject, add adder) {
			for _, d := range s.Usage.Devices {
				name, major, minor := deviceName(d.Major, d.Minor), strconv.Itoa(int(d.Major)), strconv.Itoa(int(d.Minor))
				add(d.ReadBytes, name, major, minor, "Read")
				add(d.WriteBytes, name, major, minor, "Write")
				add(d.DiscardBytes, name, major, minor, "Discard")
			}
		}},
}

var interfaces = []family{
	ofTraffic("container_network_receive_bytes_total", "Cumulative count of bytes received",
		func(c *network.Counters) uint64 { return c.RxBytes }),
	ofTraffic("container_network_receive_packets_total", "Cumulative count of packets received",
		func(c *network.Counters) uint64 { return c.RxPackets }),
	ofTraffic("container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving",
		func(c *network.Counters) uint64 { return c.RxDropped }),
	ofTraffic("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving",
		func(c *network.Counters) uint64 { return c.RxErrors }),
	ofTraffic("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted",
		func(c *network.Counters) uint64 { return c.TxBytes }),
	ofTraffic("container_network_transmit_packets_total", "Cumulative count of packets transmitted",
		func(c *network.Counters) uint64 { return c.TxPackets }),
	ofTraffic("container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting",
		func(c *network.Counters) uint64 { return c.TxDropped }),
	ofTraffic("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting",
		func(c *network.Counters) uint64 { return c.TxErrors }),
}

var processes = []family{
	{"container_threads", "Number of threads running inside the container", gauge, nil, func(s *Subject, add adder) {
		if s.Usage.Tasks.Known {
			add(s.Usage.Tasks.Current)
		}
	}},
	{"container_threads_max", "Maximum number of threads allowed inside the container, infinity if value is zero", gauge,
		nil, func(s *Subject, add adder) {
			if s.Usage.Tasks.Known {
				add(unlessUnlimited(s.Usage.Tasks.Max))
			}
		}},
	ofProcesses("container_processes", "Number of processes running inside the container.", nil,
		func(p *Processes, add adder) { add(p.Count) }),
	ofProcesses("container_file_descriptors", "Number of open file descriptors for the container.", nil,
		func(p *Processes, add adder) {
			if p.Descriptors.Known {
				add(p.Descriptors.Count)
			}
		}),
	ofProcesses("container_sockets", "Number of open sockets for the container.", nil, func(p *Processes, add adder) {
		if p.Sockets.Known {
			add(p.Sockets.Count)
		}
	}),
	ofProcesses("container_ulimits_soft", "Soft ulimit values for the container root process. Unlimited if -1, except "+
		"priority and nice", []string{"ulimit"}, func(p *Processes, add adder) {
		if p.MaxOpenFiles.Known {
			add(p.MaxOpenFiles.Count, "max_open_files")
		}
	}),
}

func seconds(nanoseconds uint64) uint64 { return nanoseconds / uint64(time.Second) }

// unlessUnlimited is 0 for no limit, as cAdvisor has it.
func unlessUnlimited(n uint64) uint64 {
	if n == cgroup.Unlimited {
		return 0
	}
	return n
}

func ofCPU(name, help string, value func(*cgroup.CPU) uint64) family {
	return family{name, help, counter, nil, func(s *Subject, add adder) {
		if s.Usage.CPU.Known {
			add(value(&s.Usage.CPU))
		}
	}}
}

func ofMemory(name, help string, value func(*cgroup.Memory) uint64) family {
	return family{name, help, gauge, nil, func(s *Subject, add adder) {
		if s.Usage.Memory.Known {
			add(value(&s.Usage.Memory))
		}
	}}
}

func limitOf(name, help string, value func(*cgroup.Usage) (uint64, bool)) family {
	return family{name, help, gauge, nil, func(s *Subject, add adder) {
		if n, ok := value(&s.Usage); ok {
			add(n)
		}
	}}
}

func waiting(name, help string, of func(*cgroup.Usage) *cgroup.Pressure) family {
	return family{name, help, counter, nil, func(s *Subject, add adder) {
		if p := of(&s.Usage); p.Known {
			add(seconds(p.Some.Total))
		}
	}}
}

func stalled(name, help string, of func(*cgroup.Usage) *cgroup.Pressure) family {
	return family{name, help, counter, nil, func(s *Subject, add adder) {
		if p := of(&s.Usage); p.Known {
			add(seconds(p.Full.Total))
		}
	}}
}

func ofDisk(name, help string, value func(*Disk) uint64) family {
	return family{name, help, gauge, []string{"device"}, func(s *Subject, add adder) {
		if s.Disk != nil {
			add(value(s.Disk), s.Disk.Device)
		}
	}}
}

func ofDevices(name, help string, value func(*cgroup.Device) uint64) family {
	return family{name, help, counter, []string{"device"}, func(s *Subject, add adder) {
		for i := range s.Usage.Devices {
			d := &s.Usage.Devices[i]
			add(value(d), deviceName(d.Major, d.Minor))
		}
	}}
}

func ofTraffic(name, help string, value func(*network.Counters) uint64) family {
	return family{name, help, counter, []string{"interface"}, func(s *Subject, add adder) {
		for i := range s.Traffic.Interfaces {
			add(value(&s.Traffic.Interfaces[i]), s.Traffic.Interfaces[i].Name)
		}
	}}
}

func ofProcesses(name, help string, labels []string, value func(*Processes, adder)) family {
	return family{name, help, gauge, labels, func(s *Subject, add adder) {
		if s.Processes != nil {
			value(s.Processes, add)
		}
	}}
}
