package limits

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

func ptr[T any](v T) *T { return &v }

// v2Dir makes a directory with the files of a cgroup of v2.
func v2Dir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLimitsAsV2HasThem(t *testing.T) {
	dir := v2Dir(t, map[string]string{
		"cpu.weight": "100\n", "cpu.max": "20000 50000\n", "memory.current": "1000\n", "memory.max": "4000\n",
		"memory.swap.max": "max\n",
		"hugetlb.2MB.max": "max\n", "hugetlb.2MB.rsvd.max": "max\n",
	})
	for _, c := range []struct {
		want *specs.LinuxResources
		has  string
	}{
		{&specs.LinuxResources{}, ""},
		{
			&specs.LinuxResources{
				CPU: &specs.LinuxCPU{Shares: ptr(uint64(1024)), Quota: ptr(int64(30000)), Period: ptr(uint64(100000)),
					Cpus: "0-1"}},
			"cpu.weight=100 cpu.max=30000 100000 cpuset.cpus=0-1"},
		{&specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: ptr(int64(-1))}}, "cpu.max=max"},
		{&specs.LinuxResources{CPU: &specs.LinuxCPU{Period: ptr(uint64(70000))}}, "cpu.max=20000 70000"},
		{&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr(int64(2000)), Swap: ptr(int64(2000))}},
			"memory.max=2000 memory.swap.max=0"},
		{&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr(int64(-1)), Swap: ptr(int64(-1))}},
			"memory.max=max memory.swap.max=max"},
		{&specs.LinuxResources{Memory: &specs.LinuxMemory{Swap: ptr(int64(5000))}}, "memory.swap.max=1000"},
		{&specs.LinuxResources{HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 7}}},
			"hugetlb.2MB.max=7 hugetlb.2MB.rsvd.max=7"},
		{&specs.LinuxResources{Unified: map[string]string{"pids.max": "9", "io.max": "8:0 rbps=1\n8:16 wbps=2"}},
			"io.max=8:0 rbps=1 io.max=8:16 wbps=2 pids.max=9"},
	} {
		got, err := limitsV2(dir, Was{}, c.want)
		var words []string
		for _, s := range got {
			words = append(words, filepath.Base(s.file)+"="+s.value)
		}
		if text := strings.Join(words, " "); err != nil || text != c.has {
			t.Errorf("got %q, wanted %q (%v)", text, c.has, err)
		}
	}
}

func TestMemoryInUseIsNotTakenAway(t *testing.T) {
	dir := v2Dir(t, map[string]string{"memory.current": "3000\n", "memory.max": "max\n", "memory.reclaim": ""})
	for _, want := range []*specs.LinuxResources{
		{Memory: &specs.LinuxMemory{Limit: ptr(int64(2000))}}, {Unified: map[string]string{"memory.max": "2000"}},
		{Unified: map[string]string{"memory.max": " 0x7d0 "}},
	} {
		_, err := limitsV2(dir, Was{}, want)
		var e *UsageError
		if !errors.As(err, &e) || e.Usage != 3000 || e.Limit != 2000 || !errors.Is(err, unix.EBUSY) {
			t.Errorf("got %v", err)
		}
	}
	if asked, err := os.ReadFile(filepath.Join(dir, "memory.reclaim")); err != nil || string(asked) != "1125" {
		t.Errorf("the kernel was asked to give back %q at last (%v)", asked, err)
	}
}

// A kernel before Linux 5.19 cannot be asked to give memory back. It does so by itself when a limit is lowered, and
// kills when that is not enough: clean pages of files are what it gives back for sure.
func TestRoomWhereTheKernelCannotBeAsked(t *testing.T) {
	const stat = "anon 2000\nfile 8000\nshmem 1000\nfile_dirty %d\nfile_writeback 500\ninactive_file 4000\n" +
		"active_file 3000\n"
	for _, c := range []struct {
		stat  string
		limit int64
		ok    bool
	}{
		{fmt.Sprintf(stat, 500), 5000, true}, // 10000 in use, 6000 of it clean
		{fmt.Sprintf(stat, 500), 4267, true},
		{fmt.Sprintf(stat, 500), 4200, false}, // less than a sixteenth to spare
		{fmt.Sprintf(stat, 500), 3999, false},
		{fmt.Sprintf(stat, 3000), 5000, false},
		{fmt.Sprintf(stat, 9000), 9999, false}, // none is clean
		{"", 9999, false},                      // nothing is told
		{fmt.Sprintf(stat, 500), 10000, true},
	} {
		dir := v2Dir(t, map[string]string{"memory.current": "10000\n", "memory.max": "max\n", "memory.stat": c.stat})
		_, err := limitsV2(dir, Was{}, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &c.limit}})
		var used *UsageError
		if c.ok && err != nil || !c.ok && !errors.As(err, &used) {
			t.Errorf("a limit of %d where the kernel says %q: %v", c.limit, c.stat, err)
		}
	}
	// One that can be asked has given back what it could.
	dir := v2Dir(t, map[string]string{
		"memory.current": "10000\n", "memory.stat": fmt.Sprintf(stat, 500), "memory.max": "max\n", "memory.reclaim": "",
	})
	if err := makeRoom(dir, 5000); !errors.Is(err, unix.EBUSY) {
		t.Errorf("where the kernel was asked: %v", err)
	}
}

// A process that reads files takes 30 bytes while somebody looks what is in use.
func TestRoomIsMadeBesideAReader(t *testing.T) {
	used, asked := uint64(9000), 0
	got, err := reclaimTo(6400, func() (uint64, error) {
		used += 30
		return used, nil
	}, func(n uint64) { asked++; used -= n })
	if err != nil || got != 6400+30-100 || asked != 2 {
		t.Errorf("%d in use after %d times (%v)", got, asked, err)
	}
}

// The kernel takes units too, and numbers that are too large for it, of which it keeps what is left.
func TestMemoryLimitsInUnits(t *testing.T) {
	dir := v2Dir(t, map[string]string{"memory.current": "3000000\n", "memory.max": "max\n", "memory.reclaim": ""})
	for text, want := range map[string]error{
		"2M": unix.EBUSY, "2m\n": unix.EBUSY, "3M": nil, "1g": nil, "max": nil, "": unix.EINVAL, "M": unix.EINVAL,
		"18446744073709551617": unix.EINVAL, "2MB": unix.EINVAL,
	} {
		if _, err := limitsV2(dir, Was{}, &specs.LinuxResources{Unified: map[string]string{"memory.max": text}}); !errors.Is(
			err, want) {
			t.Errorf("%q: %v, wanted %v", text, err, want)
		}
	}
}

func TestWeightFollowsTheRuntime(t *testing.T) {
	had := func(n uint64) *specs.LinuxResources { return &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &n}} }
	type peers map[uint64]string // shares: weight
	for _, c := range []struct {
		now   string
		was   *specs.LinuxResources
		peers []peers
		want  uint64
	}{
		{"39", had(1024), nil, 79}, // 2048 on the line: the runtime before knew no other way
		{"100", had(1024), nil, 174},
		{"100", nil, nil, 174},
		{"77", had(1024), nil, 174}, // somebody else's
		// Of the least shares both ways make the same: others show which it was.
		{"1", had(2), nil, 174},
		{"1", had(2), []peers{{1024: "39"}}, 79},
		{"1", had(2), []peers{{1024: "100"}, {1024: "39"}}, 174},
		{"1", had(2), []peers{{2: "1"}, {1024: "77"}, {512: ""}, {512: "20"}}, 79},
		{"100", nil, []peers{{512: "20"}}, 79},
		{"100", had(1024), []peers{{1024: "39"}}, 174}, // it shows it itself
	} {
		was := Was{Limits: c.was}
		if c.peers != nil {
			was.Peers = func(yield func(string, uint64) bool) {
				for _, p := range c.peers {
					for shares, weight := range p {
						files := map[string]string{}
						if weight != "" {
							files["cpu.weight"] = weight
						}
						if !yield(v2Dir(t, files), shares) {
							return
						}
					}
				}
			}
		}
		if got := weight(v2Dir(t, map[string]string{"cpu.weight": c.now}), was, 2048); got != c.want {
			t.Errorf("%s beside %v: %d, wanted %d", c.now, c.peers, got, c.want)
		}
	}
	for weight, want := range map[uint64]bool{79: true, 174: true, 100: false, 0: false} {
		if MadeOf(weight, 2048) != want {
			t.Errorf("weight %d of 2048 shares: %v", weight, !want)
		}
	}
	for shares, want := range map[uint64][2]uint64{2: {1, 1}, 262144: {10000, 10000}, 1024: {39, 100}, 0: {1, 1},
		1 << 40: {10000, 10000}} {
		if got := [2]uint64{onLine(shares), onCurve(shares)}; got != want {
			t.Errorf("%d shares: %v, wanted %v", shares, got, want)
		}
	}
}

// A refusal half way leaves everything as it was, also in files with a line for each device.
func TestAllLimitsOrNone(t *testing.T) {
	dir := v2Dir(t, map[string]string{"memory.max": "max\n", "cpu.max": "max 100000\n", "io.max": "8:0 rbps=5 wbps=max " +
		"riops=max wiops=max\n"})
	if err := os.Mkdir(filepath.Join(dir, "pids.max"), 0o755); err != nil { // which no kernel would take a number in
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, last := range []setting{{at("pids.max"), "1"}, {at("memory.none"), "1"}} {
		_, err := apply([]setting{{at("memory.max"), "5"}, {at("cpu.max"), "1 2"}, last})
		if err == nil || !strings.Contains(err.Error(), filepath.Base(last.file)) {
			t.Errorf("%s: got %v", last.file, err)
		}
		for name, want := range map[string]string{"memory.max": "max\n", "cpu.max": "max 100000\n"} {
			if got, _ := os.ReadFile(at(name)); string(got) != want {
				t.Errorf("%s is %q, was %q", name, got, want)
			}
		}
	}
	old, err := setting{at("io.max"), "8:0 rbps=1\n8:16 wbps=2"}.before()
	if want := []setting{{at("io.max"), "8:0 rbps=5 wbps=max riops=max wiops=max"},
		{at("io.max"), "8:16 rbps=max wbps=max riops=max wiops=max"}}; err != nil || !slices.Equal(old, want) {
		t.Errorf("what puts io.max back: %q (%v)", old, err)
	}
	putBack, err := apply([]setting{{at("memory.max"), "5"}, {at("cpu.max"), "1 2"}})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(at("cpu.max")); string(got) != "1 2\n" {
		t.Errorf("cpu.max is %q", got)
	}
	if err := putBack(); err != nil {
		t.Error(err)
	}
	if got, _ := os.ReadFile(at("memory.max")); string(got) != "max\n" {
		t.Errorf("memory.max is %q after all", got)
	}
}

// A limit of memory is not put back below what came into use meanwhile.
func TestMemoryInUseStaysWhenLimitsArePutBack(t *testing.T) {
	dir := v2Dir(t, map[string]string{"memory.current": "3000\n", "memory.max": "4000\n", "memory.reclaim": "",
		"cpu.weight": "100\n"})
	putBack, err := apply([]setting{{filepath.Join(dir, "cpu.weight"), "7"}, {filepath.Join(dir, "memory.max"), "8000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "memory.current"), []byte("6000\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var used *UsageError
	if err := putBack(); !errors.As(err, &used) || used.Usage != 6000 || used.Limit != 4000 {
		t.Errorf("got %v", err)
	}
	for name, want := range map[string]string{"memory.max": "8000\n", "cpu.weight": "100\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q (%v), wanted %q", name, got, err, want)
		}
	}
}

// TestLimitsOfARealCgroup writes what this kernel takes, whichever cgroups it has, in the order that it takes it.
func TestLimitsOfARealCgroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	path := "/berth-test-" + strconv.Itoa(os.Getpid()) + "/limits"
	at, err := cgroup.Locate(path)
	if err != nil {
		t.Fatal(err)
	}
	if cgroup.Mode() == cgroup.V2 || at.V1["memory"] == "" || at.V1["cpu"] == "" {
		t.Skip("this looks at v1; the end-to-end tests write limits everywhere")
	}
	for _, c := range []string{"memory", "cpu"} {
		if err := os.MkdirAll(at.V1[c], 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = errors.Join(os.Remove(at.V1[c]), os.Remove(filepath.Dir(at.V1[c]))) })
	}
	read := func(c, name string) string {
		data, err := os.ReadFile(filepath.Join(at.V1[c], name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(data))
	}
	const mib = 1 << 20
	for _, memory := range []int64{64 * mib, 128 * mib, 32 * mib} {
		m := &specs.LinuxMemory{Limit: ptr(memory)}
		if _, err := os.Stat(filepath.Join(at.V1["memory"], "memory.memsw.limit_in_bytes")); err == nil {
			m.Swap = ptr(memory + mib)
		}
		if _, err := Set(path, Was{}, &specs.LinuxResources{Memory: m}); err != nil {
			t.Fatal(err)
		}
		if got := read("memory", "memory.limit_in_bytes"); got != strconv.FormatInt(memory, 10) {
			t.Errorf("limited to %s, wanted %d", got, memory)
		}
	}
	// The parent allows half a processor: each step must keep within it, whichever is written first.
	if err := os.WriteFile(filepath.Join(filepath.Dir(at.V1["cpu"]), "cpu.cfs_quota_us"), []byte("50000"), 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]int64{
		{40000, 100000}, {400000, 1000000}, {10000, 20000}, {50000, 100000}, {5000, 10000}, {-1, 100000}, {400000, 1000000},
		{-1, 10000}, {-1, 1000000}, {5000, 10000},
	} {
		want := &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: ptr(c[0]), Period: ptr(uint64(c[1]))}}
		if _, err := Set(path, Was{}, want); err != nil {
			t.Fatal(err)
		}
		if got := read("cpu", "cpu.cfs_quota_us") + "/" + read("cpu", "cpu.cfs_period_us"); got != number(c[0])+"/"+
			number(c[1]) {
			t.Errorf("got %s, wanted %v", got, c)
		}
	}
	before := read("cpu", "cpu.shares")
	_, err = Set(path, Was{},
		&specs.LinuxResources{
			CPU: &specs.LinuxCPU{Shares: ptr(uint64(77)), Quota: ptr(int64(900000)), Period: ptr(uint64(100000))}})
	if !errors.Is(err, unix.EINVAL) || read("cpu", "cpu.shares") != before || read("cpu", "cpu.cfs_period_us") != "10000" {
		t.Errorf("a quota above the parent's: %v, and %s shares, period %s", err, read("cpu", "cpu.shares"),
			read("cpu", "cpu.cfs_period_us"))
	}
}
