package systemd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/godbus/dbus/v5"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/cgroup"
	"berth/internal/cgroup/limits"
)

// crunGroup is the cgroup that crun makes in a scope on cgroup v2, with the limits of the scope.
const crunGroup = "container"

// unitFiles are the files in which systemd writes what it knows of a scope, in an order in which they can be written.
// cpu.idle is before cpu.weight, which cannot be written while it is 1.
var unitFiles = []string{
	"cpu.idle", "cpu.weight", "cpu.max", "cpuset.cpus", "cpuset.mems", "io.weight", "io.bfq.weight", "memory.min",
	"memory.low", "memory.high", "memory.max", "memory.swap.max", "memory.zswap.max", "memory.zswap.writeback",
	"memory.oom.group", "pids.max",
}

// SetLimits changes the limits of a container: all that want has, or none. They are written to its cgroup, and told to
// systemd, which writes what it knows of a unit whenever it sees a reason to.
func (u *Units) SetLimits(ctx context.Context, ctr string, was limits.Was, want *specs.LinuxResources) (
	putBack func() error, err error) {
	path, err := cgroup.ScopePath(ctr)
	if err != nil {
		return nil, err
	}
	var below []string
	if info, err := os.Stat(filepath.Join(u.Mount, path, crunGroup)); err == nil && info.IsDir() &&
		cgroup.Mode() == cgroup.V2 {
		below = append(below, crunGroup)
	}
	files, err := limits.Set(path, was.At(cgroup.ScopePath), want, below...)
	if err != nil {
		return nil, err
	}
	v2 := cgroup.Mode() == cgroup.V2
	properties := unitLimits(want, v2)
	if v2 && want.CPU != nil {
		properties = append(properties, u.cpuWritten(path, want.CPU)...)
	}
	unit, err := u.setProperties(ctx, path, properties)
	if err != nil {
		return nil, errors.Join(err, files())
	}
	return func() error {
		// The files are first, since it is looked that no process is killed for a limit of memory that is lower again.
		err := files()
		if used := (*limits.UsageError)(nil); errors.As(err, &used) {
			return err
		}
		return errors.Join(err, unit())
	}, nil
}

// cpuWritten says what was just written of weight and quota: both depend on more than what is wanted.
func (u *Units) cpuWritten(path string, c *specs.LinuxCPU) (all []property) {
	read := func(file string) string {
		data, _ := os.ReadFile(filepath.Join(u.Mount, path, file)) // it was written a moment ago
		return strings.TrimSpace(string(data))
	}
	add := func(name string, value any) { all = append(all, set(name, value)) }
	if c.Shares != nil {
		unifiedLimit("cpu.weight", read("cpu.weight"), add)
	}
	if c.Quota != nil || c.Period != nil {
		unifiedLimit("cpu.max", read("cpu.max"), add)
	}
	return all
}

// setProperties changes properties of the scope at path until the next boot: all that this systemd has, or none.
func (u *Units) setProperties(ctx context.Context, path string, want []property) (putBack func() error, err error) {
	if len(want) == 0 {
		return func() error { return nil }, nil
	}
	scope := filepath.Base(path)
	object, err := u.Manager.object(ctx, scope)
	if err != nil {
		return nil, err
	}
	if object == "" {
		return nil, fmt.Errorf("systemd does not know the scope %s", scope)
	}
	var old, known []property
	for _, p := range want {
		var v dbus.Variant
		err := u.Manager.send(ctx, object, "org.freedesktop.DBus.Properties.Get", []any{service + ".Scope", p.Name},
			[]any{&v})
		if lacksProperty(err) {
			continue // the file has it
		}
		if err != nil {
			return nil, fmt.Errorf("ask systemd for %s of %s: %w", p.Name, scope, err)
		}
		old, known = append(old, property{p.Name, v}), append(known, p)
	}
	if len(known) == 0 {
		return func() error { return nil }, nil
	}
	putBack = func() error {
		_, err := u.tell(context.WithoutCancel(ctx), path, old)
		return err
	}
	told, err := u.tell(ctx, path, known)
	if err != nil && told {
		err = errors.Join(err, putBack())
	}
	return putBack, err
}

// lacksProperty reports whether err says that this systemd has no such property, as one before 253 has none for
// memory.zswap.max.
func lacksProperty(err error) bool {
	var said dbus.Error
	return errors.As(err, &said) && said.Name == "org.freedesktop.DBus.Error.UnknownProperty"
}

// tell has systemd change properties of the scope at path, and leaves the cgroup as it is. systemd writes all that it
// knows of a scope then, whichever property is changed: the quota in whole percents, and its defaults where the OCI
// runtime told it nothing, as of a limit of swap that is 0 and of memory.oom.group. told says that they are changed.
func (u *Units) tell(ctx context.Context, path string, p []property) (told bool, err error) {
	restore := limits.Keep(filepath.Join(u.Mount, path), unitFiles...)
	err = u.Manager.setProperties(ctx, filepath.Base(path), p)
	return err == nil, errors.Join(err, restore())
}

func (m *Manager) setProperties(ctx context.Context, unit string, p []property) error {
	if err := m.call(ctx, "Manager.SetUnitProperties", []any{unit, true, p}, nil); err != nil {
		return fmt.Errorf("have systemd change the limits of %s: %w", unit, err)
	}
	return nil
}

// infinity is systemd's word for no limit.
const infinity = uint64(math.MaxUint64)

// orInfinity is a limit as systemd takes it.
func orInfinity(n int64) uint64 {
	if n < 0 {
		return infinity
	}
	return uint64(n)
}

// unitLimits are the properties of a unit that say the same as want. What systemd has no property for it leaves alone.
func unitLimits(want *specs.LinuxResources, v2 bool) (all []property) {
	add := func(name string, value any) { all = append(all, set(name, value)) }
	if p := want.Pids; p != nil && p.Limit != nil {
		limit := *p.Limit
		if limit == 0 {
			limit = -1
		}
		add("TasksMax", orInfinity(limit))
	}
	if c := want.CPU; c != nil {
		cpuLimits(c, v2, add)
	}
	switch m := want.Memory; {
	case m == nil:
	case !v2:
		if m.Limit != nil {
			add("MemoryLimit", orInfinity(*m.Limit))
		}
	default:
		if m.Limit != nil {
			add("MemoryMax", orInfinity(*m.Limit))
		}
		if m.Swap != nil && (*m.Swap < 0 || m.Limit != nil && *m.Limit >= 0) {
			swap := infinity
			if *m.Swap >= 0 {
				swap = uint64(*m.Swap - *m.Limit)
			}
			add("MemorySwapMax", swap)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want.Unified)) {
		unifiedLimit(key, want.Unified[key], add)
	}
	return all
}

func cpuLimits(c *specs.LinuxCPU, v2 bool, add func(name string, value any)) {
	if !v2 { // of v1, systemd knows no processors
		if c.Shares != nil {
			add("CPUShares", *c.Shares)
		}
		if c.Quota != nil && c.Period != nil {
			addQuota(*c.Quota, *c.Period, add)
		}
		return
	}
	if c.Cpus != "" {
		add("AllowedCPUs", bits(c.Cpus))
	}
	if c.Mems != "" {
		add("AllowedMemoryNodes", bits(c.Mems))
	}
}

// addQuota rounds up to whole percents, which is what systemd keeps.
func addQuota(quota int64, period uint64, add func(name string, value any)) {
	perSecond := infinity
	if quota > 0 {
		const percent = 10000 // microseconds a second
		perSecond = (uint64(quota)*1000000/period + percent - 1) / percent * percent
	}
	add("CPUQuotaPerSecUSec", perSecond)
	add("CPUQuotaPeriodUSec", period)
}

// namedLimits are settings of cgroup v2 that are a number, or max, and their properties.
var namedLimits = map[string]string{
	"memory.max": "MemoryMax", "memory.high": "MemoryHigh", "memory.low": "MemoryLow", "memory.min": "MemoryMin",
	"memory.swap.max": "MemorySwapMax", "memory.zswap.max": "MemoryZSwapMax", "pids.max": "TasksMax",
	"cpu.weight": "CPUWeight",
}

func unifiedLimit(key, value string, add func(name string, value any)) {
	switch fields := strings.Fields(value); {
	case namedLimits[key] != "" && strings.TrimSpace(value) == "max":
		add(namedLimits[key], infinity)
	case namedLimits[key] != "":
		if n, ok := limits.Bytes(value); ok {
			add(namedLimits[key], n)
		}
	case key == "cpuset.cpus":
		add("AllowedCPUs", bits(value))
	case key == "cpuset.mems":
		add("AllowedMemoryNodes", bits(value))
	case key == "cpu.max" && len(fields) > 0:
		quota, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			quota = -1
		}
		period := uint64(100000)
		if len(fields) > 1 {
			period, _ = strconv.ParseUint(fields[1], 10, 64)
		}
		if period > 0 {
			addQuota(quota, period, add)
		}
	}
}

// bits is a list such as 0-3,5 as systemd takes it: a bit each, the least first. The kernel has taken the list before.
func bits(list string) []byte {
	var out []byte
	for part := range strings.SplitSeq(list, ",") {
		first, last, ranged := strings.Cut(part, "-")
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			continue
		}
		to := from
		if ranged {
			if to, err = strconv.ParseUint(last, 10, 16); err != nil {
				continue
			}
		}
		for n := from; n <= to; n++ {
			for uint64(len(out)) <= n/8 {
				out = append(out, 0)
			}
			out[n/8] |= 1 << (n % 8)
		}
	}
	return out
}
