package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"berth/test/timeouts"
)

// tree writes files of a cgroup, given as name: text, and points a reader at them.
func tree(t *testing.T, files map[string]string) *reader {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &reader{dir: []byte(dir), missing: true}
}

// golden reads a txtar-like file: each "-- name --" begins a file of the cgroup.
func golden(t *testing.T, path string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, part := range strings.Split(string(data), "-- ")[1:] {
		name, text, ok := strings.Cut(part, " --\n")
		if !ok {
			t.Fatalf("%s: no file name in %q", path, part)
		}
		files[name] = text
	}
	return files
}

func TestReadsV2(t *testing.T) {
	r := tree(t, golden(t, "testdata/v2.txt"))
	var got Usage
	r.v2(Everything, &got)
	got.Huge = nil // by the sizes of this machine
	want := Usage{
		CPU: CPU{Known: true, Usage: 1234567000, User: 1000000000, System: 234567000, Periods: 40, Throttled: 7,
			ThrottledTime: 350000000,
			Shares:        998, Weight: 39, Period: 100000, Quota: 50000},
		Memory: Memory{Known: true, Usage: 104857600, WorkingSet: 94371840, Limit: 134217728, RSS: 52428800, Faults: 9001,
			MajorFaults: 12, OwnKnown: true, OwnFaults: 9001, OwnMajor: 12, Reserved: 1048576,
			Cache: 41943040, Mapped: 8388608, Active: 31457280, Inactive: 10485760, Kernel: 4194304, Peak: 120586240,
			LimitHits: 3, OOMKills: 1},
		Swap:  Swap{Known: true, Usage: 4096, Limit: 1 << 20},
		Tasks: Tasks{Known: true, Current: 5, Max: Unlimited},
		CPUPressure: Pressure{Known: true, Some: Stall{Total: 1500000, Avg10: 1.25, Avg60: 0.5, Avg300: 0.1},
			Full: Stall{Total: 1000}},
		MemoryPressure: Pressure{Known: true, Some: Stall{Total: 42000, Avg300: 99.99},
			Full: Stall{Total: 41000, Avg10: 3}},
		IOPressure: Pressure{Known: true, Full: Stall{Total: 7000}, Some: Stall{Total: 8000}},
		Devices: []Device{
			{Major: 8, ReadBytes: 4096, WriteBytes: 8192, Reads: 1, Writes: 2, DiscardBytes: 512, Discards: 3},
			{Major: 254, Minor: 16, ReadBytes: 1, WriteBytes: 0, Reads: 1},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if r.missing || r.err != nil {
		t.Errorf("missing %v, error %v", r.missing, r.err)
	}
}

// What a kernel or a host does not have is not known, and nothing else is amiss.
func TestReadsV2WithoutControllers(t *testing.T) {
	r := tree(t, map[string]string{"cpu.stat": "usage_usec 5\nuser_usec 3\nsystem_usec 2\n", "memory.current": "8192\n",
		"memory.stat": "anon 4096\ninactive_file 12288\nslab 100\n", "memory.max": "max\n"})
	var got Usage
	r.v2(Stats, &got)
	want := Usage{CPU: CPU{Known: true, Usage: 5000, User: 3000, System: 2000},
		Memory: Memory{Known: true, OwnKnown: true, Usage: 8192, RSS: 4096, Inactive: 12288, Kernel: 100,
			Limit: Unlimited}}
	if !reflect.DeepEqual(got, want) || r.err != nil {
		t.Errorf("got  %+v, %v\nwant %+v", got, r.err, want)
	}
}

// TestUsageBesideOtherHierarchies reads a group of a host of cgroup v2 on which somebody has mounted hierarchies of v1,
// and one of a hybrid host.
func TestUsageBesideOtherHierarchies(t *testing.T) {
	const group = "/pod"
	at := func(h hierarchy, files map[string]string) hierarchy {
		h.dir = t.TempDir()
		if err := os.Symlink(string(tree(t, files).dir), h.dir+group); err != nil {
			t.Fatal(err)
		}
		return h
	}
	v2 := at(hierarchy{v2: true}, map[string]string{"cpu.stat": "usage_usec 5\n", "memory.current": "8192\n",
		"pids.current": "3\n", "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"})
	bare := hierarchy{dir: t.TempDir(), controllers: []string{"name=systemd"}}
	memory := hierarchy{dir: t.TempDir(), controllers: []string{"memory"}}
	v1 := at(hierarchy{controllers: []string{"cpuacct", "pids"}}, map[string]string{"cpuacct.usage": "9000\n",
		"pids.current": "4\n"})
	for name, c := range map[string]struct {
		hierarchies []hierarchy
		mode        Modes
		cpu, tasks  uint64
		pressure    bool
	}{
		"v2":               {[]hierarchy{v2}, V2, 5000, 3, true},
		"v2, a named one":  {[]hierarchy{v2, bare}, V2, 5000, 3, true},
		"v2, a controller": {[]hierarchy{memory, v2}, V2, 5000, 3, true},
		"hybrid":           {[]hierarchy{v1, bare, v2}, Hybrid, 9000, 4, true},
		"v1":               {[]hierarchy{bare, v1}, V1, 9000, 4, false},
	} {
		var u Usage
		r := &reader{missing: true}
		r.usage(c.hierarchies, c.mode, group, Stats, &u)
		if r.missing || r.err != nil || u.CPU.Usage != c.cpu || u.Tasks.Current != c.tasks ||
			u.CPUPressure.Known != c.pressure {
			t.Errorf("%s: missing %v, %v: %+v", name, r.missing, r.err, u)
		}
	}
}

func TestReadsV1(t *testing.T) {
	r := tree(t, golden(t, "testdata/v1.txt"))
	var got Usage
	r.v1([]string{"cpu", "cpuacct", "memory", "pids", "blkio"}, Everything, &got)
	want := Usage{
		CPU: CPU{Known: true, Usage: 77000000, User: 60000000, System: 17000000, Periods: 10, Throttled: 2,
			ThrottledTime: 5000, Shares: 512, Period: 100000, Quota: Unlimited},
		Memory: Memory{Known: true, Usage: 2097152, WorkingSet: 1048576, Limit: 67108864, RSS: 524288, Faults: 100,
			MajorFaults: 2, OwnKnown: true, OwnFaults: 5, OwnMajor: 1, Reserved: 4096,
			Cache: 1179648, Mapped: 16384, Active: 131072, Inactive: 1048576, Kernel: 65536, Peak: 3145728, LimitHits: 9,
			OOMKills: 4},
		Swap:  Swap{Known: true, Usage: 8192, Limit: 33554432, Both: 100663296},
		Tasks: Tasks{Known: true, Current: 3, Max: 100},
		Devices: []Device{
			{Major: 7, Minor: 1, ReadBytes: 4096, WriteBytes: 512, Reads: 1, Writes: 1, DiscardBytes: 0, Discards: 0},
		},
	}
	if !reflect.DeepEqual(got, want) || r.err != nil {
		t.Errorf("got  %+v, %v\nwant %+v", got, r.err, want)
	}
}

func TestNoLimitOfV1(t *testing.T) {
	r := tree(t, map[string]string{"memory.usage_in_bytes": "1\n", "memory.stat": "total_swap 0\n",
		"memory.limit_in_bytes": "9223372036854771712\n", "memory.memsw.limit_in_bytes": "9223372036854771712\n"})
	var got Usage
	r.v1([]string{"memory"}, Stats, &got)
	if got.Memory.Limit != Unlimited || got.Swap.Limit != Unlimited || !got.Swap.Known {
		t.Errorf("%+v %+v", got.Memory, got.Swap)
	}
}

// A group of thousands of processes is read to its end, and no number of it is half read.
func TestReadsLargeFiles(t *testing.T) {
	var text strings.Builder
	for pid := range 9000 {
		fmt.Fprintln(&text, 100000+pid)
	}
	r, n := tree(t, map[string]string{"cgroup.procs": text.String()}), 0
	for line := range lines(r.file("cgroup.procs")) {
		if pid, ok := number(line); !ok || pid != uint64(100000+n) {
			t.Fatalf("line %d is %q", n, line)
		}
		n++
	}
	if n != 9000 {
		t.Errorf("%d processes of 9000", n)
	}
}

func TestNumbers(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "7\n": 7, "max\n": Unlimited, "18446744073709551615": Unlimited,
		"99999999999999999999": Unlimited} {
		if got, ok := number([]byte(text)); !ok || got != want {
			t.Errorf("%q: %d, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "\n", "-1", "x", "1 2"} {
		if got, ok := number([]byte(text)); ok {
			t.Errorf("%q gave %d", text, got)
		}
	}
}

func TestTreePath(t *testing.T) {
	for name, want := range map[string]string{
		"/berth/a/b": "/berth/a/b", "kubepods-pod12.slice:berth:abc": "/kubepods.slice/kubepods-pod12.slice/berth-abc.scope",
		"kubepods-burstable.slice": "/kubepods.slice/kubepods-burstable.slice",
		"/kubepods.slice/x.slice":  "/kubepods.slice/x.slice", "kubepods": "/kubepods",
	} {
		if got, err := TreePath(name); got != want || err != nil {
			t.Errorf("%s: %s, %v; want %s", name, got, err, want)
		}
	}
	for _, bad := range []string{"", "/", "-.slice", "/a/../.."} {
		if got, err := TreePath(bad); err == nil {
			t.Errorf("%q gave %q", bad, got)
		}
	}
}

// burner starts a shell that burns, in a group of its own in every hierarchy, and returns the group's path.
func burner(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	path := "/berth-usage-" + strings.ReplaceAll(t.Name(), "/", "-")
	t.Cleanup(func() {
		if err := RemoveTree(path); err != nil {
			t.Error(err)
		}
	})
	pid := shell(t, "while :; do :; done")
	all, err := mounted()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		dir := filepath.Join(h.dir, path)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pid), 0); err != nil &&
			!strings.Contains(h.dir, "cpuset") {
			t.Fatal(err)
		}
	}
	return path
}

// TestReadsThisKernel reads a real group whose process burns a core.
func TestReadsThisKernel(t *testing.T) {
	path := burner(t)
	var a, b Usage
	before := time.Now()
	if err := ReadUsage(path, Everything, &a); err != nil {
		t.Fatal(err)
	}
	// on a busy machine it may not have its turn for a while
	for end := time.Now().Add(timeouts.For(10 * time.Second)); ; {
		time.Sleep(200 * time.Millisecond)
		if err := ReadUsage(path, Everything, &b); err != nil {
			t.Fatal(err)
		}
		if b.CPU.Usage > a.CPU.Usage && b.CPU.User > 0 || time.Now().After(end) {
			break
		}
	}
	// One process cannot have used more than there was, but the kernel counts by a clock of its own, in ticks on some
	// machines.
	there := time.Since(before) + 10*time.Millisecond
	if !b.CPU.Known || b.CPU.Usage <= a.CPU.Usage || b.CPU.Usage-a.CPU.Usage > uint64(there) {
		t.Errorf("%v of processor time in %v", time.Duration(b.CPU.Usage-a.CPU.Usage), there)
	}
	if a.At.Before(before) || !b.At.After(a.At) || b.At.Sub(a.At) > there {
		t.Errorf("read at %v and %v, from %v on", a.At, b.At, before)
	}
	// On v1 user and system are counted in ticks, each by who runs at its end.
	if b.CPU.User == 0 || b.CPU.User+b.CPU.System > 2*b.CPU.Usage+uint64(100*time.Millisecond) {
		t.Errorf("user %d, system %d of %d", b.CPU.User, b.CPU.System, b.CPU.Usage)
	}
	if b.Memory.Known && b.Memory.Limit != Unlimited {
		t.Errorf("memory %+v", b.Memory)
	}
	if !b.Tasks.Known || b.Tasks.Current != 1 {
		t.Errorf("tasks %+v", b.Tasks)
	}
	if pids, err := Processes(path); err != nil || len(pids) != 1 {
		t.Errorf("processes %v, %v", pids, err)
	}
}

func TestUsageOfNothing(t *testing.T) {
	var u Usage
	if err := ReadUsage("/berth-usage-nothing", Stats, &u); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := Processes("/berth-usage-nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := ReadUsage("/", Stats, &u); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func BenchmarkReadUsage(b *testing.B) {
	path := burner(b)
	for name, extent := range map[string]Extent{"stats": Stats, "everything": Everything} {
		b.Run(name, func(b *testing.B) {
			var u Usage
			b.ReportAllocs()
			for b.Loop() {
				if err := ReadUsage(path, extent, &u); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
