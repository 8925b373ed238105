package cadvisor

import (
	"slices"
	"testing"

	"berth/internal/cgroup"
)

// TestMemoryTellsNoZeros has the metrics of a group whose kernel keeps no highest usage (cgroup v2 before Linux 5.19),
// and of a pod that is the sum of its containers: what is not known is left out, and what is known and 0 is not.
func TestMemoryTellsNoZeros(t *testing.T) {
	const peak = "container_memory_max_usage_bytes"
	for name, c := range map[string]struct {
		memory cgroup.Memory
		want   []string
	}{
		"all": {cgroup.Memory{Known: true, OwnKnown: true, Peak: 7}, []string{peak, "pgfault container",
			"pgmajfault container", "pgfault hierarchy", "pgmajfault hierarchy"}},
		"no peak": {cgroup.Memory{Known: true, OwnKnown: true}, []string{"pgfault container", "pgmajfault container",
			"pgfault hierarchy", "pgmajfault hierarchy"}},
		"a sum":   {cgroup.Memory{Known: true, Usage: 9}, []string{"pgfault hierarchy", "pgmajfault hierarchy"}},
		"nothing": {cgroup.Memory{}, nil},
	} {
		var got []string
		for _, m := range Metrics(&Subject{Usage: cgroup.Usage{Memory: c.memory}}) {
			switch m.Name {
			case peak:
				got = append(got, peak)
			case "container_memory_failures_total":
				got = append(got, m.LabelValues[len(keys)]+" "+m.LabelValues[len(keys)+1])
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q are told, wanted %q", name, got, c.want)
		}
	}
}
