package cli

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

func u64(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

// ListContainerStats tells of each container that it has used half a core since the last question.
func (d *daemon) ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest) (
	*runtimeapi.ListContainerStatsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, "ListContainerStats")
	resp := &runtimeapi.ListContainerStatsResponse{}
	now := time.Now().UnixNano()
	for _, c := range d.containers {
		s := &runtimeapi.ContainerStats{
			Attributes:    &runtimeapi.ContainerAttributes{Id: c.Id, Metadata: c.Metadata},
			Cpu:           &runtimeapi.CpuUsage{Timestamp: now, UsageCoreNanoSeconds: u64(uint64(now) / 2)},
			Memory:        &runtimeapi.MemoryUsage{WorkingSetBytes: u64(3_000_000), AvailableBytes: u64(1_000_000)},
			WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: u64(5000), InodesUsed: u64(7)},
		}
		if c.Metadata.Name == "busy" {
			s.Cpu.UsageNanoCores, s.Memory.AvailableBytes, s.Cpu.UsageCoreNanoSeconds = u64(1_500_000_000), nil,
				u64(uint64(now)/2*3)
		}
		resp.Stats = append(resp.Stats, s)
	}
	return resp, nil
}

func (d *daemon) ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest) (
	*runtimeapi.ListPodSandboxStatsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	resp := &runtimeapi.ListPodSandboxStatsResponse{}
	for i, p := range d.pods {
		resp.Stats = append(resp.Stats, &runtimeapi.PodSandboxStats{
			Attributes: &runtimeapi.PodSandboxAttributes{Id: p.Id, Metadata: p.Metadata},
			Linux: &runtimeapi.LinuxPodSandboxStats{
				Cpu: &runtimeapi.CpuUsage{Timestamp: 1, UsageCoreNanoSeconds: u64(1),
					UsageNanoCores: u64(uint64(i+1) * 100_000_000)},
				Memory:  &runtimeapi.MemoryUsage{WorkingSetBytes: u64(2000)},
				Process: &runtimeapi.ProcessUsage{ProcessCount: u64(4)},
				Network: &runtimeapi.NetworkUsage{
					DefaultInterface: &runtimeapi.NetworkInterfaceUsage{Name: "eth0", RxBytes: u64(1000), TxBytes: u64(20_000)},
					Interfaces: []*runtimeapi.NetworkInterfaceUsage{
						{Name: "eth0", RxBytes: u64(1000), TxBytes: u64(20_000)}, {Name: "net1", RxBytes: u64(500), TxBytes: u64(1)},
					},
				},
				Containers: []*runtimeapi.ContainerStats{{WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: u64(7000)}}},
			},
		})
	}
	return resp, nil
}

func statsDaemon(t *testing.T) *daemon {
	d := startDaemon(t)
	d.addPod("aaaa", "web", "default")
	d.addPod("bbbb", "db", "prod")
	d.addContainer("c1c1", "aaaa", "idle", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	d.addContainer("c2c2", "bbbb", "busy", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	return d
}

// wantLines checks that the lines of out match the patterns, one each.
func wantLines(t *testing.T, out string, patterns ...string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != len(patterns) {
		t.Fatalf("%d lines, wanted %d:\n%s", len(lines), len(patterns), out)
	}
	for i, p := range patterns {
		if !regexp.MustCompile("^" + strings.ReplaceAll(p, " ", " +") + "$").MatchString(lines[i]) {
			t.Errorf("line %d is %q, wanted %q", i, lines[i], p)
		}
	}
}

func TestStatsOnce(t *testing.T) {
	d := statsDaemon(t)
	out, errs, code := d.berth(t, "stats", "--no-stream", "--interval", "200ms")
	if code != 0 {
		t.Fatal(errs)
	}
	// What the daemon could not rate yet is rated by a second look.
	wantLines(t, out, "CONTAINER NAME POD CPU MEMORY LIMIT SWAP DISK FILES",
		`c1c1 idle default/web 50\.0% 3.0 MB 4.0 MB - 5.0 kB 7`, `c2c2 busy prod/db 150\.0% 3.0 MB - - 5.0 kB 7`)
	d.info.Storage = []admin.ContainerStorage{{ID: "c1c1", LimitBytes: 2e9, LimitInodes: 64}}
	out, _, _ = d.berth(t, "stats", "--no-stream", "idle")
	wantLines(t, out, "CONTAINER .*", `c1c1 idle .* - 5.0 kB of 2.0 GB 7 of 64`)
	out, _, _ = d.berth(t, "stats", "--no-stream", "busy")
	wantLines(t, out, "CONTAINER .*", "c2c2 busy .*")
	if _, errs, code := d.berth(t, "stats", "nobody"); code != 3 || !strings.Contains(errs, "nobody") {
		t.Errorf("code %d: %s", code, errs)
	}
	out, _, _ = d.berth(t, "stats", "-o", "json", "c1c1")
	if err := json.Unmarshal([]byte(out), &struct{ Stats any }{}); err != nil ||
		!strings.Contains(out, "usageCoreNanoSeconds") || strings.Contains(out, "c2c2") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestStatsOfPods(t *testing.T) {
	d := statsDaemon(t)
	out, _, _ := d.berth(t, "stats", "-p", "--no-stream")
	wantLines(t, out, "POD NAME NAMESPACE CPU MEMORY PROCESSES RECEIVED SENT DISK",
		`aaaa web default 10\.0% 2.0 kB 4 1.5 kB 20.0 kB 7.0 kB`, `bbbb db prod 20\.0% 2.0 kB 4 1.5 kB 20.0 kB 7.0 kB`)
	out, _, _ = d.berth(t, "top", "-p", "--no-stream", "-n", "1")
	wantLines(t, out, "POD .*", "bbbb db .*")
}

func TestStatsGoOnUntilInterrupted(t *testing.T) {
	d := statsDaemon(t)
	ctx, cancel := context.WithCancel(t.Context())
	screen := &safeBuffer{}
	go func() {
		until(func() bool { return strings.Count(screen.String(), "CONTAINER") >= 2 })
		cancel()
	}()
	errs, code := d.berthTo(ctx, nil, screen, "top", "--interval", "100ms")
	out := screen.String()
	if code != 0 || errs != "" || strings.Count(out, "CONTAINER") < 2 || strings.Contains(out, "\x1b") {
		t.Errorf("code %d, %s:\n%s", code, errs, out)
	}
	last := strings.Split(strings.TrimSpace(out), "\n")
	if len(last) < 3 || !strings.Contains(last[len(last)-2], "busy") || !strings.Contains(last[len(last)-1], "idle") {
		t.Errorf("the busiest is not the first:\n%s", out)
	}
	for _, args := range [][]string{{"stats", "--interval", "1ms"}, {"top", "-n", "-1"}, {"top", "x"}} {
		if _, errs, code := d.berth(t, args...); code == 0 || errs == "" {
			t.Errorf("%v: code %d, %s", args, code, errs)
		}
	}
}
