package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestLimitsAsSystemdHasThem(t *testing.T) {
	num := func(n int64) *int64 { return &n }
	shares, period := uint64(512), uint64(100000)
	want := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Shares: &shares, Quota: num(12345), Period: &period, Cpus: "0-1,9"},
		Memory: &specs.LinuxMemory{Limit: num(4096), Swap: num(8192)}, Pids: &specs.LinuxPids{Limit: num(-1)},
		Unified: map[string]string{"memory.high": "max", "memory.low": "77", "memory.min": "1K\n", "cpu.max": "max 50000",
			"io.max": "8:0 rbps=1"},
	}
	for v2, has := range map[bool]string{
		false: "TasksMax=@t 18446744073709551615 CPUShares=@t 512 CPUQuotaPerSecUSec=@t 130000 CPUQuotaPeriodUSec=@t " +
			"100000 MemoryLimit=@t 4096",
		true: "TasksMax=@t 18446744073709551615 AllowedCPUs=@ay [0x3, 0x2] MemoryMax=@t 4096 MemorySwapMax=@t 4096 " +
			"CPUQuotaPerSecUSec=@t 18446744073709551615 CPUQuotaPeriodUSec=@t 50000 MemoryHigh=@t 18446744073709551615 " +
			"MemoryLow=@t 77 MemoryMin=@t 1024",
	} {
		w := *want
		if !v2 {
			w.Unified = nil
		}
		var words []string
		for _, p := range unitLimits(&w, v2) {
			words = append(words, fmt.Sprintf("%s=%s", p.Name, p.Value))
		}
		if got := strings.Join(words, " "); got != has {
			t.Errorf("v2 %v:\n got %s\nwant %s", v2, got, has)
		}
	}
	if got := bits("3"); !slices.Equal(got, []byte{8}) {
		t.Errorf("processor 3 is %v", got)
	}
}

// systemd writes all that it knows of a unit when one of its properties is set: a quota in whole percents, and the
// defaults of what nobody has told it. The files of the container keep what they said, exactly.
func TestLimitsStayAsTheyWereWritten(t *testing.T) {
	files := map[string]string{
		"cpu.max": "1500 100000", "cpu.weight": "39", "memory.max": "4096", "memory.swap.max": "0", "memory.oom.group": "1",
		"io.weight": "default 200", "cpuset.cpus": "", "pids.max": "77",
	}
	f := &fake{scope: "a.scope", properties: map[string]dbus.Variant{
		"CPUQuotaPerSecUSec": dbus.MakeVariant(infinity), "CPUQuotaPeriodUSec": dbus.MakeVariant(infinity),
		"CPUWeight": dbus.MakeVariant(uint64(39)), "MemoryMax": dbus.MakeVariant(uint64(4096)),
	}}
	u, dir := faked(t, f, files)
	f.applied = func(p map[string]dbus.Variant) {
		quota := "max 100000"
		if n := p["CPUQuotaPerSecUSec"].Value().(uint64); n != infinity {
			quota = fmt.Sprint(n/10, " 100000")
		}
		for name, text := range map[string]string{
			"cpu.max": quota, "cpu.weight": fmt.Sprint(p["CPUWeight"].Value()), "memory.max": fmt.Sprint(p["MemoryMax"].Value()),
			"memory.swap.max": "max", "memory.oom.group": "0", "io.weight": "default 100",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
				t.Error(err)
			}
		}
	}
	check := func(when string) {
		t.Helper()
		for name, want := range files {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if got := strings.TrimSpace(string(data)); err != nil || got != want {
				t.Errorf("%s: %s is %q (%v), wanted %q", when, name, got, err, want)
			}
		}
	}
	for when, p := range map[string][]property{
		"a quota":  u.cpuWritten("/pod.slice/a.scope", &specs.LinuxCPU{Quota: new(int64)}),
		"a weight": {set("CPUWeight", uint64(39))},
		"a memory": {set("MemoryMax", uint64(4096))},
	} {
		putBack, err := u.setProperties(t.Context(), "/pod.slice/a.scope", p)
		if err != nil {
			t.Fatal(err)
		}
		check(when)
		if err := putBack(); err != nil {
			t.Error(err)
		}
		check(when + ", put back")
	}
}

// A systemd before 253 has no property for memory.zswap.max. It is told what it knows; the file has the limit.
func TestPropertiesThatSystemdLacks(t *testing.T) {
	f := &fake{scope: "a.scope", properties: map[string]dbus.Variant{"MemoryMax": dbus.MakeVariant(infinity)}}
	u, _ := faked(t, f, nil)
	zswap := &specs.LinuxResources{Unified: map[string]string{"memory.zswap.max": "4096"}}
	both := &specs.LinuxResources{Unified: map[string]string{"memory.zswap.max": "4096", "memory.max": "8192"}}
	for _, c := range []struct {
		want *specs.LinuxResources
		has  uint64
	}{{zswap, infinity}, {both, 8192}} {
		putBack, err := u.setProperties(t.Context(), "/pod.slice/a.scope", unitLimits(c.want, true))
		if err != nil {
			t.Fatal(err)
		}
		if got := f.has("MemoryMax"); got != c.has {
			t.Errorf("with %v, MemoryMax is %v", c.want.Unified, got)
		}
		if err := putBack(); err != nil {
			t.Error(err)
		}
		if got := f.has("MemoryMax"); got != infinity {
			t.Errorf("with %v put back, MemoryMax is %v", c.want.Unified, got)
		}
	}
}
