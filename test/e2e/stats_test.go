package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/timeouts"
)

// stats are those of one container.
func (c *ctr) stats() *v1.ContainerStats {
	c.Helper()
	s, err := c.n.Runtime.ContainerStats(ctx(), c.cid)
	c.ok(err)
	return s
}

func (p *pod) stats() *v1.PodSandboxStats {
	p.Helper()
	s, err := p.n.Runtime.PodSandboxStats(ctx(), p.id)
	p.ok(err)
	return s
}

// fresh checks a time at which something was read.
func (r rig) fresh(what string, at int64) {
	r.Helper()
	if age := time.Since(time.Unix(0, at)); age < -time.Second || age > timeouts.For(time.Minute) {
		r.Errorf("%s was read %v ago", what, age)
	}
}

// between checks a value that is there.
func (r rig) between(what string, v *v1.UInt64Value, least, most uint64) {
	r.Helper()
	if v == nil || v.Value < least || v.Value > most {
		r.Errorf("%s is %v, wanted %d to %d", what, v, least, most)
	}
}

// TestStatsOfProcessorTime has a container burn under a quota, and compares the rate with what was used in the
// meantime.
func TestStatsOfProcessorTime(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		c := p.start(busybox("burner", "while :; do :; done", resources(func(l *v1.LinuxContainerResources) {
			l.CpuPeriod, l.CpuQuota = 100000, 30000
		})))
		first := c.stats().Cpu
		time.Sleep(3 * time.Second)
		last := c.stats().Cpu
		r.fresh("processor time", last.GetTimestamp())
		used := float64(last.GetUsageCoreNanoSeconds().GetValue() - first.GetUsageCoreNanoSeconds().GetValue())
		cores := used / float64(last.Timestamp-first.Timestamp)
		if cores < 0.01 || cores > 0.45 {
			r.Errorf("%.3f cores were used where the quota is 0.3", cores)
		}
		// The rate is since the container was made, which is longer.
		if told := float64(last.GetUsageNanoCores().GetValue()) / 1e9; told < cores*0.5-0.02 || told > cores*1.5+0.05 {
			r.Errorf("%.3f cores are told, %.3f were used", told, cores)
		}
		pod := p.stats().Linux.Cpu
		if pod.GetUsageCoreNanoSeconds().GetValue() < last.UsageCoreNanoSeconds.Value ||
			pod.GetUsageNanoCores().GetValue() == 0 {
			r.Errorf("of the pod: %v, of its container before: %v", pod, last)
		}
	})
}

// TestStatsOfMemory has a container take memory under a limit.
func TestStatsOfMemory(t *testing.T) {
	const limit, taken = 256 << 20, 48 << 20
	each(t, func(r rig) {
		p := r.pod()
		c := p.start(webapp("eater", "alloc 48", resources(func(l *v1.LinuxContainerResources) {
			l.MemoryLimitInBytes = limit
		})))
		r.eventually("the memory is taken", func() bool { return c.stats().GetMemory().GetRssBytes().GetValue() >= taken })
		m := c.stats().Memory
		r.fresh("memory", m.Timestamp)
		r.between("rss", m.RssBytes, taken, limit)
		r.between("usage", m.UsageBytes, m.RssBytes.Value, limit)
		r.between("working set", m.WorkingSetBytes, taken, m.UsageBytes.Value)
		r.between("available", m.AvailableBytes, limit-m.WorkingSetBytes.Value, limit-m.WorkingSetBytes.Value)
		r.between("page faults", m.PageFaults, taken/(2<<20), 1<<30)
		if m.MajorPageFaults == nil {
			r.Error("major page faults are missing")
		}
		if s := c.stats().Swap; s != nil {
			r.fresh("swap", s.Timestamp)
			r.between("swap used", s.SwapUsageBytes, 0, limit)
		}
		r.eventually("the pod's has come up to that", func() bool { // the kernel gathers it over the groups in its own time
			return p.stats().Linux.Memory.RssBytes.GetValue() >= taken
		})
		r.between("rss of the pod", p.stats().Linux.Memory.RssBytes, taken, 2*limit)
		free := p.start(busybox("free", "sleep 1000")).stats().Memory
		if free.AvailableBytes != nil {
			r.Errorf("without a limit %v are available", free.AvailableBytes)
		}
	})
}

// TestStatsOfPressure wants all of PSI on cgroup v2.
func TestStatsOfPressure(t *testing.T) {
	onV2(t)
	each(t, func(r rig) {
		p := r.pod()
		c := p.start(busybox("burner", "while :; do :; done", resources(func(l *v1.LinuxContainerResources) {
			l.CpuPeriod, l.CpuQuota = 10000, 1000
		})))
		r.eventually("it waits for the processor", func() bool {
			return c.stats().GetCpu().GetPsi().GetSome().GetTotal() > 1e6
		})
		s, of := c.stats(), p.stats().Linux
		for what, psi := range map[string]*v1.PsiStats{
			"processor": s.Cpu.Psi, "memory": s.Memory.Psi, "io": s.GetIo().GetPsi(),
			"processor, pod": of.Cpu.Psi, "memory, pod": of.Memory.Psi, "io, pod": of.GetIo().GetPsi(),
		} {
			if psi.GetFull() == nil || psi.GetSome() == nil {
				r.Errorf("%s: %v", what, psi)
			}
		}
	})
}

// TestStatsOfNetwork sends three megabytes from one pod to another.
func TestStatsOfNetwork(t *testing.T) {
	const size = 3000000
	each(t, func(r rig) {
		from, to, host := r.pod(), r.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-to" }),
			r.pod(func(c *v1.PodSandboxConfig) {
				c.Metadata.Name += "-host"
				c.Hostname = ""
				c.Linux.SecurityContext = &v1.LinuxSandboxSecurityContext{
					NamespaceOptions: &v1.NamespaceOption{Network: v1.NamespaceMode_NODE}}
			})
		from.start(busybox("server", "head -c 3000000 /dev/zero > /big; exec busybox httpd -f -p 8080 -h /"))
		to.output(busybox("client", "until wget -q -O /dev/null http://"+from.ip()+":8080/big; do sleep 0.1; done"))
		for what, c := range map[string]struct {
			p        *pod
			sent, in func(*v1.NetworkInterfaceUsage) *v1.UInt64Value
		}{
			"sender":   {from, (*v1.NetworkInterfaceUsage).GetTxBytes, (*v1.NetworkInterfaceUsage).GetRxBytes},
			"receiver": {to, (*v1.NetworkInterfaceUsage).GetRxBytes, (*v1.NetworkInterfaceUsage).GetTxBytes},
		} {
			n := c.p.stats().Linux.GetNetwork()
			r.fresh(what, n.GetTimestamp())
			if n.GetDefaultInterface().GetName() != "eth0" || len(n.GetInterfaces()) != 1 {
				r.Fatalf("%s: interfaces %v", what, n)
			}
			if !proto.Equal(n.Interfaces[0], n.DefaultInterface) {
				r.Errorf("%s: the list has %v, the default interface is %v", what, n.Interfaces[0], n.DefaultInterface)
			}
			r.between(what+", with the stream", c.sent(n.GetDefaultInterface()), size, size*5/4)
			r.between(what+", against the stream", c.in(n.GetDefaultInterface()), 1000, size/5)
			r.between(what+", errors", n.GetDefaultInterface().GetRxErrors(), 0, 0)
			r.between(what+", errors", n.GetDefaultInterface().GetTxErrors(), 0, 0)
		}
		if n := host.stats().Linux.Network; n != nil {
			r.Errorf("a pod with the node's network has %v", n)
		}
	})
}

// TestStatsOfAFreshContainer asks for the writable layer of a container at once: its directory is there, and takes an
// inode.
func TestStatsOfAFreshContainer(t *testing.T) {
	each(t, func(r rig) {
		w := r.pod().create(busybox("fresh", "true")).stats().WritableLayer
		r.between("inodes", w.InodesUsed, 1, 40)
		if w.Timestamp == 0 || w.UsedBytes == nil {
			r.Errorf("the writable layer: %v", w)
		}
	})
}

// TestStatsOfWritableLayer writes into a container's root, and nowhere else.
func TestStatsOfWritableLayer(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		c := p.start(busybox("writer", "mkdir /d; for i in 1 2 3 4 5; do head -c 1000000 /dev/zero > /d/$i; done; head -c "+
			"5000000 /dev/zero > /dev/shm/x; echo done; sleep 1000"))
		c.logged("done")
		c.stats() // what was asked for once is read in the background
		r.eventually("what was written is told", func() bool {
			return c.stats().WritableLayer.UsedBytes.GetValue() >= 5000000
		})
		w := c.stats().WritableLayer
		r.fresh("the writable layer", w.Timestamp)
		r.between("bytes", w.UsedBytes, 5000000, 5500000)
		r.between("inodes", w.InodesUsed, 6, 40)
		fs, err := r.n.Images.ImageFsInfo(ctx())
		r.ok(err)
		if got, want := w.FsId.GetMountpoint(), fs.ContainerFilesystems[0].FsId.Mountpoint; got != want {
			r.Errorf("file system %q, wanted %q", got, want)
		}
		// One that has ended keeps its layer, and has nothing else.
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
		if s := c.stats(); s.Cpu != nil || s.Memory != nil || s.WritableLayer.GetUsedBytes().GetValue() < 5000000 ||
			s.Attributes.GetId() != c.cid {
			r.Errorf("of one that has ended: %v", s)
		}
	})
}

// TestStatsOfPods checks what a pod's stats hold of its containers, and what is left after a stop.
func TestStatsOfPods(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(func(c *v1.PodSandboxConfig) {
			c.Labels, c.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
		})
		one := p.start(busybox("one", "sleep 1000 & sleep 1000 & echo up; wait", func(c *v1.ContainerConfig) {
			c.Labels = map[string]string{"e": "f"}
		}))
		one.logged("up")
		two := p.create(busybox("two", "true"))
		gone := p.start(busybox("gone", "true"))
		gone.finish()
		s := p.stats()
		a, want := s.Attributes, p.config
		if a.GetId() != p.id || a.GetMetadata().GetUid() != want.Metadata.Uid || a.Labels["a"] != "b" ||
			a.Annotations["c"] != "d" {
			r.Errorf("attributes %v", a)
		}
		var ids []string
		for _, c := range s.Linux.Containers {
			ids = append(ids, c.Attributes.Id)
		}
		if !slices.Equal(ids, []string{one.cid, two.cid}) {
			r.Errorf("containers %v, wanted %s and %s", ids, one.cid, two.cid)
		}
		if c := s.Linux.Containers[0]; c.Cpu == nil || c.Memory == nil || c.WritableLayer == nil ||
			c.Attributes.Labels["e"] != "f" || c.Attributes.Metadata.Name != "one" {
			r.Errorf("container %v", c)
		}
		r.fresh("processes", s.Linux.Process.GetTimestamp())
		// the shell, its two, and what a runtime has in the second
		r.between("processes", s.Linux.Process.GetProcessCount(), 3, 50)
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
		if s := p.stats(); s.Attributes.GetId() != p.id || s.Linux.GetCpu() != nil || len(s.Linux.GetContainers()) != 0 {
			r.Errorf("of a stopped pod: %v", s)
		}
		all, err := r.n.Runtime.ListPodSandboxStats(ctx(), nil)
		r.ok(err)
		if slices.ContainsFunc(all, func(s *v1.PodSandboxStats) bool { return s.Attributes.Id == p.id }) {
			r.Error("a stopped pod is in the list")
		}
	})
}

// TestStatsOfNothing asks as kubelets do to find out what a runtime can: an empty id must be NotFound, not
// Unimplemented.
func TestStatsOfNothing(t *testing.T) {
	each(t, func(r rig) {
		for _, id := range []string{"", strings.Repeat("0", 64), "nothing"} {
			_, err := r.n.Runtime.ContainerStats(ctx(), id)
			r.wantCode(err, codes.NotFound, "container")
			_, err = r.n.Runtime.PodSandboxStats(ctx(), id)
			r.wantCode(err, codes.NotFound, "pod sandbox")
		}
	})
}

// TestStatsFilters lists by id, its beginning, pod and labels.
func TestStatsFilters(t *testing.T) {
	each(t, func(r rig) {
		mine := map[string]string{"stats-filters": unique(r.T)}
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Labels = mine })
		other := r.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-other" })
		label := func(c *v1.ContainerConfig) { c.Labels = mine }
		a, b := p.start(busybox("a", "sleep 1000", label)), p.start(busybox("b", "sleep 1000"))
		c := other.start(busybox("c", "sleep 1000", label))
		for name, q := range map[string]struct {
			f    *v1.ContainerStatsFilter
			want []string
		}{
			"id":                {&v1.ContainerStatsFilter{Id: a.cid}, []string{a.cid}},
			"beginning of it":   {&v1.ContainerStatsFilter{Id: a.cid[:12]}, []string{a.cid}},
			"pod":               {&v1.ContainerStatsFilter{PodSandboxId: p.id}, []string{a.cid, b.cid}},
			"label":             {&v1.ContainerStatsFilter{LabelSelector: mine}, []string{a.cid, c.cid}},
			"pod and label":     {&v1.ContainerStatsFilter{PodSandboxId: other.id, LabelSelector: mine}, []string{c.cid}},
			"id of another pod": {&v1.ContainerStatsFilter{Id: a.cid, PodSandboxId: other.id}, nil},
			"other label":       {&v1.ContainerStatsFilter{LabelSelector: map[string]string{"stats-filters": "no"}}, nil},
		} {
			list, err := r.n.Runtime.ListContainerStats(ctx(), q.f)
			r.ok(err)
			var got []string
			for _, s := range list {
				got = append(got, s.Attributes.Id)
			}
			slices.Sort(got)
			slices.Sort(q.want)
			if !slices.Equal(got, q.want) {
				r.Errorf("%s: %v, wanted %v", name, got, q.want)
			}
		}
		for name, q := range map[string]struct {
			f    *v1.PodSandboxStatsFilter
			want int
		}{
			"id": {&v1.PodSandboxStatsFilter{Id: p.id}, 1}, "beginning of it": {&v1.PodSandboxStatsFilter{Id: p.id[:12]}, 1},
			"label":        {&v1.PodSandboxStatsFilter{LabelSelector: mine}, 1},
			"id and label": {&v1.PodSandboxStatsFilter{Id: other.id, LabelSelector: mine}, 0},
		} {
			list, err := r.n.Runtime.ListPodSandboxStats(ctx(), q.f)
			r.ok(err)
			if len(list) != q.want {
				r.Errorf("pods by %s: %d, wanted %d", name, len(list), q.want)
			}
		}
		// Whatever else the node runs, all of it is there without a filter.
		list, err := r.n.Runtime.ListContainerStats(ctx(), nil)
		r.ok(err)
		for _, want := range []string{a.cid, b.cid, c.cid} {
			if !slices.ContainsFunc(list, func(s *v1.ContainerStats) bool { return s.Attributes.Id == want }) {
				r.Errorf("%s is not in the list", want)
			}
		}
	})
}

// TestStatsSurviveWhatCannotBeRead lists a pod whose network namespace is not where it was, one without a cgroup, and
// one that is whole.
func TestStatsSurviveWhatCannotBeRead(t *testing.T) {
	each(t, func(r rig) {
		named := func(name string) *pod { return r.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-" + name }) }
		whole, empty, torn := named("whole"), named("empty"), named("torn")
		whole.start(busybox("main", "sleep 1000"))
		torn.start(busybox("main", "sleep 1000"))
		pin := "/run/netns/" + r.n.Instance + "-" + torn.id
		r.ok(r.n.Space.Do(func() error { return unix.Mount("/dev/null", pin, "", unix.MS_BIND, "") }))
		r.Cleanup(func() { r.ok(r.n.Space.Do(func() error { return unix.Unmount(pin, 0) })) })
		list, err := r.n.Runtime.ListPodSandboxStats(ctx(), nil)
		r.ok(err)
		metrics, err := r.n.Runtime.ListPodSandboxMetrics(ctx())
		r.ok(err)
		for _, want := range []*pod{whole, empty, torn} {
			i := slices.IndexFunc(list, func(s *v1.PodSandboxStats) bool { return s.Attributes.Id == want.id })
			if i < 0 || !slices.ContainsFunc(metrics, func(m *v1.PodSandboxMetrics) bool { return m.PodSandboxId == want.id }) {
				r.Errorf("pod %s is not in the lists", want.id)
				continue
			}
			s := list[i].Linux
			if s.GetCpu().GetUsageCoreNanoSeconds() == nil || s.GetMemory().GetWorkingSetBytes() == nil ||
				s.GetProcess().GetProcessCount() == nil {
				r.Errorf("pod %s: %v", want.id, s)
			}
			if network := s.Network != nil; network != (want != torn) {
				r.Errorf("pod %s: network %v", want.id, s.Network)
			}
		}
	})
}

// TestStatsInStreams compares the streams with the lists, by id: the values change meanwhile.
func TestStatsInStreams(t *testing.T) {
	each(t, func(r rig) {
		conn, err := grpc.NewClient("unix:"+r.n.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		r.ok(err)
		defer func() { _ = conn.Close() }()
		client := v1.NewRuntimeServiceClient(conn)
		p := r.pod()
		// Labels and annotations that are large enough for several parts.
		large := func(c *v1.ContainerConfig) {
			c.Annotations = map[string]string{"large": strings.Repeat("x", 350<<10)}
			c.Labels = map[string]string{"large": strings.Repeat("x", 350<<10)}
		}
		a, b := p.start(busybox("a", "sleep 1000", large)), p.start(busybox("b", "sleep 1000", large))
		ctrs, err := client.StreamContainerStats(ctx(),
			&v1.StreamContainerStatsRequest{Filter: &v1.ContainerStatsFilter{PodSandboxId: p.id}})
		r.ok(err)
		var got []string
		for {
			part, err := ctrs.Recv()
			if err != nil {
				break
			}
			if len(part.ContainerStats) != 1 {
				r.Errorf("%d in one part", len(part.ContainerStats))
			}
			for _, s := range part.ContainerStats {
				got = append(got, s.Attributes.Id)
			}
		}
		if !slices.Equal(got, []string{a.cid, b.cid}) {
			r.Errorf("streamed %v", got)
		}
		pods, err := client.StreamPodSandboxStats(ctx(),
			&v1.StreamPodSandboxStatsRequest{Filter: &v1.PodSandboxStatsFilter{Id: p.id}})
		r.ok(err)
		part, err := pods.Recv()
		if err != nil || len(part.PodSandboxStats) != 1 || part.PodSandboxStats[0].Attributes.Id != p.id ||
			len(part.PodSandboxStats[0].Linux.Containers) != 2 {
			r.Errorf("pods: %v, %v", len(part.GetPodSandboxStats()), err)
		}
		metrics, err := client.StreamPodSandboxMetrics(ctx(), &v1.StreamPodSandboxMetricsRequest{})
		r.ok(err)
		found := 0
		for {
			part, err := metrics.Recv()
			if err != nil {
				break
			}
			for _, m := range part.PodSandboxMetrics {
				if m.PodSandboxId == p.id {
					found++
				}
			}
		}
		if found != 1 {
			r.Errorf("the pod was %d times among the streamed metrics", found)
		}
	})
}
