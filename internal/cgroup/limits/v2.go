package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

// limitsV2 says what to write where in one cgroup of the unified hierarchy. It makes sure that a lower limit on memory
// has room.
func limitsV2(dir string, was Was, want *specs.LinuxResources) (out []setting, err error) {
	add := func(name, value string) { out = append(out, setting{filepath.Join(dir, name), value}) }
	if c := want.CPU; c != nil {
		cpuV2(dir, was, c, add)
	}
	if m := want.Memory; m != nil {
		if err := memoryV2(dir, m, add); err != nil {
			return nil, err
		}
	}
	if p := want.Pids; p != nil && p.Limit != nil {
		add("pids.max", orMax(pidsOrMax(*p.Limit)))
	}
	for _, h := range want.HugepageLimits {
		add("hugetlb."+h.Pagesize+".max", number(h.Limit))
		if reserved := "hugetlb." + h.Pagesize + ".rsvd.max"; thereIs(dir, reserved) {
			add(reserved, number(h.Limit))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want.Unified)) {
		value := want.Unified[key]
		if key == "memory.max" && strings.TrimSpace(value) != "max" {
			limit, ok := Bytes(value)
			if !ok {
				return nil, fmt.Errorf("memory.max %q is neither max nor a number of bytes: %w", value, unix.EINVAL)
			}
			if err := makeRoom(dir, limit); err != nil {
				return nil, err
			}
		}
		if keyed[key] == "" {
			add(key, value)
			continue
		}
		for line := range strings.Lines(value) {
			add(key, strings.TrimSpace(line))
		}
	}
	return out, nil
}

// Bytes reads a number of bytes as the kernel takes it: in any base of C, or with a unit, such as 16M. It is not ok for
// max.
func Bytes(text string) (n uint64, ok bool) {
	text = strings.TrimSpace(text)
	if n, err := strconv.ParseUint(text, 0, 64); err == nil || text == "" {
		return n, err == nil
	}
	last := len(text) - 1
	unit := strings.IndexByte("KMGTPE", text[last]&^0x20) // of either case
	n, err := strconv.ParseUint(text[:last], 0, 64)
	return n << (10 * (unit + 1)), err == nil && unit >= 0
}

func thereIs(dir, name string) bool {
	_, err := os.Lstat(filepath.Join(dir, name))
	return !errors.Is(err, fs.ErrNotExist)
}

func cpuV2(dir string, was Was, c *specs.LinuxCPU, add func(name, value string)) {
	if c.Shares != nil {
		add("cpu.weight", number(weight(dir, was, *c.Shares)))
	}
	switch {
	case c.Quota != nil && c.Period != nil:
		add("cpu.max", orMax(*c.Quota)+" "+number(*c.Period))
	case c.Quota != nil:
		add("cpu.max", orMax(*c.Quota)) // the period stays
	case c.Period != nil:
		data, _ := os.ReadFile(filepath.Join(dir, "cpu.max"))
		quota, _, _ := strings.Cut(string(data), " ")
		add("cpu.max", quota+" "+number(*c.Period))
	}
	if c.Cpus != "" {
		add("cpuset.cpus", c.Cpus)
	}
	if c.Mems != "" {
		add("cpuset.mems", c.Mems)
	}
}

// memoryV2 takes swap out of what OCI counts together with memory.
func memoryV2(dir string, m *specs.LinuxMemory, add func(name, value string)) error {
	if m.Limit != nil {
		if *m.Limit >= 0 {
			if err := makeRoom(dir, uint64(*m.Limit)); err != nil {
				return err
			}
		}
		add("memory.max", orMax(*m.Limit))
	}
	if m.Swap == nil || !thereIs(dir, "memory.swap.max") {
		return nil
	}
	switch {
	case *m.Swap < 0:
		add("memory.swap.max", "max")
	case m.Limit != nil && *m.Limit >= 0:
		add("memory.swap.max", number(*m.Swap-*m.Limit))
	default:
		limit, err := readUint(filepath.Join(dir, "memory.max"))
		if err != nil {
			return err
		}
		if limit > uint64(*m.Swap) {
			return fmt.Errorf("limit memory and swap together to %d bytes: memory alone is limited to %d", *m.Swap, limit)
		}
		add("memory.swap.max", number(uint64(*m.Swap)-limit))
	}
	return nil
}

// makeRoom has the kernel give back what it can of a cgroup's memory above a limit. A limit below what is left would
// have it kill processes.
//
// A kernel before Linux 5.19 cannot be asked. It gives memory back by itself when memory.max is written, and kills when
// it has tried often in vain: the limit is left to it where clean pages of files are enough. What the cgroup may use of
// the limit without them leaves a sixteenth, since the numbers lag behind and its processes go on.
func makeRoom(dir string, limit uint64) error {
	asks := true
	used, err := reclaimTo(limit, func() (uint64, error) {
		return readUint(filepath.Join(dir, "memory.current"))
	}, func(n uint64) {
		// What cannot all be had is not an answer by itself: what is in use afterwards counts.
		err := cgroup.Write(filepath.Join(dir, "memory.reclaim"), strconv.FormatUint(n, 10))
		asks = asks && !errors.Is(err, fs.ErrNotExist)
	})
	switch {
	case err != nil, used <= limit:
		return err
	case !asks && used-min(used, cleanPages(dir)) <= limit-limit/16:
		return nil
	}
	return &UsageError{filepath.Join(dir, "memory.max"), limit, used}
}

// cleanPages is how many bytes of a cgroup's memory are pages of files that have no change to be written; 0 where the
// kernel does not say.
func cleanPages(dir string) uint64 {
	data, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
	var clean, dirty uint64
	for key, n := range cgroup.Fields(data) {
		switch string(key) {
		case "active_file", "inactive_file":
			clean += n
		case "file_dirty", "file_writeback":
			dirty += n
		}
	}
	return clean - min(clean, dirty)
}

// reclaimTo asks again, and for more than it takes, where a process that reads files fills its cache as fast as it is
// emptied. It returns what is in use in the end.
func reclaimTo(limit uint64, use func() (uint64, error), reclaim func(n uint64)) (used uint64, err error) {
	for _, spare := range []uint64{0, limit / 64, limit / 16} {
		if used, err = use(); err != nil || used <= limit {
			return used, err
		}
		reclaim(used - limit + spare)
	}
	return use()
}

// weight turns CPU shares into a weight as the OCI runtime that made the cgroup does. There are two ways: a line, as
// they all did, and a curve through 1, 100 and 10000 at 2, 1024 and 262144 shares, as they do since 2025. Which one it
// was shows in the weight that the shares before have been given, unless both give the same, as for the least shares:
// then it shows in a peer. The peers of was are directories.
func weight(dir string, was Was, shares uint64) uint64 {
	if r := was.Limits; r != nil && r.CPU != nil && r.CPU.Shares != nil {
		if way := wayOf(dir, *r.CPU.Shares); way != nil {
			return way(shares)
		}
	}
	if was.Peers != nil {
		for peer, its := range was.Peers {
			if way := wayOf(peer, its); way != nil {
				return way(shares)
			}
		}
	}
	return onCurve(shares)
}

// wayOf is the way in which shares became the weight of a cgroup; nil where that does not show.
func wayOf(dir string, shares uint64) func(uint64) uint64 {
	now, err := readUint(filepath.Join(dir, "cpu.weight"))
	line, curve := onLine(shares), onCurve(shares)
	switch {
	case err != nil, line == curve:
	case now == line:
		return onLine
	case now == curve:
		return onCurve
	}
	return nil
}

// MadeOf reports whether a weight is what CPU shares become, in either way.
func MadeOf(weight, shares uint64) bool { return weight == onLine(shares) || weight == onCurve(shares) }

// The ends of the two scales.
const (
	leastShares, mostShares = 2, 262144
	mostWeight              = 10000
)

func onLine(shares uint64) uint64 {
	shares = min(max(shares, leastShares), mostShares)
	return 1 + (shares-leastShares)*(mostWeight-1)/(mostShares-leastShares)
}

func onCurve(shares uint64) uint64 {
	switch {
	case shares <= leastShares:
		return 1
	case shares >= mostShares:
		return mostWeight
	}
	l := math.Log2(float64(shares))
	return uint64(math.Ceil(math.Pow(10, (l*l+125*l)/612-7.0/34)))
}
