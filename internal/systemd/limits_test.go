package systemd

import (
	"fmt"
	"slices"
	"strings"
	"testing"

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
