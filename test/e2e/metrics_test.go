package e2e

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/test/node"
)

// metric is one value by its labels.
type metric struct {
	labels map[string]string
	value  uint64
}

// metrics are those of the pod and its containers, by name.
func (p *pod) metrics() map[string][]metric {
	p.Helper()
	described, err := p.n.Runtime.ListMetricDescriptors(ctx())
	p.ok(err)
	keys := map[string][]string{}
	for _, d := range described {
		if d.Help == "" || len(d.LabelKeys) == 0 || keys[d.Name] != nil {
			p.Errorf("descriptor %v", d)
		}
		keys[d.Name] = d.LabelKeys
	}
	pods, err := p.n.Runtime.ListPodSandboxMetrics(ctx())
	p.ok(err)
	all := map[string][]metric{}
	add := func(list []*v1.Metric) {
		for _, m := range list {
			if len(keys[m.Name]) != len(m.LabelValues) || m.Value == nil {
				p.Fatalf("%v: label keys %v", m, keys[m.Name])
			}
			labels := map[string]string{}
			for i, key := range keys[m.Name] {
				labels[key] = m.LabelValues[i]
			}
			all[m.Name] = append(all[m.Name], metric{labels, m.Value.Value})
		}
	}
	for _, m := range pods {
		if m.PodSandboxId != p.id {
			continue
		}
		add(m.Metrics)
		for _, c := range m.ContainerMetrics {
			add(c.Metrics)
		}
	}
	return all
}

// TestMetrics checks the metrics of a container that works under limits.
func TestMetrics(t *testing.T) {
	const limit = 64 << 20
	each(t, func(r rig) {
		p, began := r.pod(), uint64(time.Now().Unix())
		c := p.start(busybox("main", "head -c 2000000 /dev/zero > /f; busybox httpd -p 8080 -h /; while :; do :; done",
			resources(func(l *v1.LinuxContainerResources) {
				l.CpuPeriod, l.CpuQuota, l.CpuShares, l.MemoryLimitInBytes = 100000, 20000, 512, limit
			})))
		var all map[string][]metric
		of := func(name string, labels ...string) (uint64, bool) {
			for _, m := range all[name] {
				if m.labels["container"] != "main" {
					continue
				}
				fits := m.labels["name"] == c.cid && m.labels["pod"] == p.config.Metadata.Name &&
					m.labels["namespace"] == p.config.Metadata.Namespace &&
					m.labels["image"] != "" && strings.Contains(m.labels["id"], c.cid)
				for i := 0; i < len(labels); i += 2 {
					fits = fits && m.labels[labels[i]] == labels[i+1]
				}
				if fits {
					return m.value, true
				}
			}
			return 0, false
		}
		r.eventually("a second of processor time is told, and what was written", func() bool {
			all = p.metrics()
			used, _ := of("container_cpu_usage_seconds_total", "cpu", "total")
			written, _ := of("container_fs_usage_bytes")
			return used >= 1 && written >= 2000000
		})
		for _, w := range []struct {
			name        string
			least, most uint64
			labels      []string
		}{
			{"container_last_seen", began, uint64(time.Now().Unix()) + 1, nil},
			{"container_start_time_seconds", began, uint64(time.Now().Unix()), nil},
			{"container_cpu_user_seconds_total", 0, 60, nil}, {"container_cpu_system_seconds_total", 0, 60, nil},
			{"container_cpu_cfs_periods_total", 5, 10000, nil}, {"container_cpu_cfs_throttled_periods_total", 1, 10000, nil},
			{"container_cpu_cfs_throttled_seconds_total", 0, 600, nil},
			{"container_spec_cpu_shares", 490, 530, nil}, {"container_spec_cpu_period", 100000, 100000, nil},
			{"container_spec_cpu_quota", 20000, 20000, nil},
			{"container_memory_usage_bytes", 1000, limit, nil}, {"container_memory_working_set_bytes", 1000, limit, nil},
			{"container_memory_rss", 1000, limit, nil}, {"container_memory_cache", 0, limit, nil},
			{"container_memory_mapped_file", 0, limit, nil},
			{"container_memory_max_usage_bytes", 1000, limit, nil}, {"container_memory_kernel_usage", 0, limit, nil},
			{"container_memory_failcnt", 0, 1 << 40, nil}, {"container_oom_events_total", 0, 0, nil},
			{"container_memory_total_active_file_bytes", 0, limit, nil},
			{"container_memory_total_inactive_file_bytes", 0, limit, nil},
			{"container_memory_failures_total", 10, 1 << 40, []string{"failure_type", "pgfault", "scope", "container"}},
			{"container_memory_failures_total", 0, 1 << 40, []string{"failure_type", "pgmajfault", "scope", "hierarchy"}},
			{"container_spec_memory_limit_bytes", limit, limit, nil},
			{"container_spec_memory_reservation_limit_bytes", 0, 0, nil},
			{"container_fs_usage_bytes", 2000000, 3000000, nil}, {"container_fs_limit_bytes", 1 << 20, 1 << 60, nil},
			{"container_fs_inodes_total", 100, 1 << 60, nil}, {"container_fs_inodes_free", 1, 1 << 60, nil},
			{"container_processes", 2, 2, nil}, {"container_threads", 2, 2, nil}, {"container_threads_max", 0, 1 << 40, nil},
			{"container_sockets", 1, 4, nil}, {"container_file_descriptors", 4, 40, nil},
			{"container_ulimits_soft", 100, 1 << 40, []string{"ulimit", "max_open_files"}},
		} {
			got, ok := of(w.name, w.labels...)
			if !ok || got < w.least || got > w.most {
				r.Errorf("%s%v is %d (%v), wanted %d to %d", w.name, w.labels, got, ok, w.least, w.most)
			}
		}
		if cgroup.Mode() == cgroup.V2 {
			for _, what := range []string{"cpu_waiting", "cpu_stalled", "memory_waiting", "memory_stalled", "io_waiting",
				"io_stalled"} {
				if _, ok := of("container_pressure_" + what + "_seconds_total"); !ok {
					r.Errorf("no pressure %s", what)
				}
			}
		}
		for _, dir := range []string{"receive", "transmit"} {
			for _, what := range []string{"bytes", "packets", "packets_dropped", "errors"} {
				m := all["container_network_"+dir+"_"+what+"_total"]
				if len(m) != 1 || m[0].labels["interface"] != "eth0" || m[0].labels["pod"] != p.config.Metadata.Name ||
					m[0].labels["container"] != "" {
					r.Errorf("%s %s: %v", dir, what, m)
				}
			}
		}
		// The pod's own are those of its cgroup, told apart by an empty container.
		if m := all["container_memory_usage_bytes"]; len(m) != 2 || m[0].labels["container"] != "" ||
			m[0].labels["image"] != "" {
			r.Errorf("memory of the pod and its container: %v", m)
		}
	})
}

// TestDaemonMetrics reads what the daemon tells Prometheus of itself.
func TestDaemonMetrics(t *testing.T) {
	t.Parallel()
	r := ownNode(t, node.Options{Tables: "[metrics]\naddress = \"127.0.0.1:9423\"\n"})
	r.pull("busybox:latest")
	r.listen()
	p := r.pod()
	p.start(busybox("main", "sleep 1000"))
	hungry := p.start(webapp("hungry", "alloc 300", limited(&v1.LinuxContainerResources{
		MemoryLimitInBytes: 64 * mib, MemorySwapLimitInBytes: 64 * mib,
	})))
	hungry.finish()
	_, err := r.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: "127.0.0.1:1/none:latest"}, nil, nil)
	r.wantCode(err, codes.Unknown)
	var text string
	r.eventually("the end of a container was sent", func() bool {
		text, err = r.n.Get("http://127.0.0.1:9423/metrics")
		return err != nil || strings.Contains(text, `berth_events_sent_total{kind="stopped"} 1`)
	})
	r.ok(err)
	if strings.Contains(text, "\nberth_image_pull_bytes_total 0\n") {
		r.Error("no bytes of images were counted")
	}
	for _, want := range []string{
		`berth_pods{state="ready"} 1`, `berth_containers{state="running"} 1`, "berth_problems 0", "berth_build_info{",
		"berth_own_log_lost_lines_total 0", "berth_log_dropped_bytes_total 0", "berth_log_dropped_lines_total 0",
		"berth_container_oom_kills_total 1", `berth_image_pull_duration_seconds_count{result="RegistryUnavailable"} 1`,
		`berth_monitors{state="joined"} 1`, `berth_monitors{state="silent"} 0`,
		`berth_monitors_replaced_total{why="silent"} 0`,
		"berth_event_watchers 1", "berth_event_watchers_dropped_total 0", "berth_events_lost_total 0",
		`berth_events_sent_total{kind="started"} 3`, "# TYPE berth_events_sent_total counter",
		"berth_storage_limit_containers 0", "berth_storage_limit_reached_total 0",
		`berth_call_duration_seconds_count{code="OK",method="RunPodSandbox"} 1`,
		`berth_call_duration_seconds_count{code="OK",method="PullImage"} 1`,
		`berth_step_duration_seconds_count{plan="pod",step="network",way="do"} 1`,
		`berth_step_duration_seconds_count{plan="container",step="process",way="do"} 2`,
	} {
		if !strings.Contains(text, want) {
			r.Errorf("there is no %s", want)
		}
	}
}
