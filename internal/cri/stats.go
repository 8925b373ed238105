package cri

import (
	"context"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/internal/meter"
	"berth/internal/network"
	"berth/internal/sandbox"
)

// ContainerStats returns what one container uses. For one that has ended, that is only its writable layer.
func (s *Server) ContainerStats(
	_ context.Context, req *runtimeapi.ContainerStatsRequest,
) (*runtimeapi.ContainerStatsResponse, error) {
	id, err := s.Catalog.ContainerID(req.ContainerId)
	if err != nil {
		return nil, err
	}
	r, c, err := s.Catalog.GetContainer(id)
	if err != nil {
		return nil, err
	}
	stats, _ := s.containerStats(r, c)
	return &runtimeapi.ContainerStatsResponse{Stats: stats}, nil
}

// ListContainerStats returns what each living container uses.
func (s *Server) ListContainerStats(
	ctx context.Context, req *runtimeapi.ListContainerStatsRequest,
) (*runtimeapi.ListContainerStatsResponse, error) {
	return &runtimeapi.ListContainerStatsResponse{Stats: s.listContainerStats(ctx, req.Filter)}, nil
}

// StreamContainerStats sends the same in parts.
func (s *Server) StreamContainerStats(
	req *runtimeapi.StreamContainerStatsRequest, to runtimeapi.RuntimeService_StreamContainerStatsServer,
) error {
	return sendPages(s.listContainerStats(to.Context(), req.Filter), func(page []*runtimeapi.ContainerStats) error {
		return to.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: page})
	})
}

// PodSandboxStats returns what one pod and its containers use. For one that was stopped, it has only the attributes.
func (s *Server) PodSandboxStats(
	_ context.Context, req *runtimeapi.PodSandboxStatsRequest,
) (*runtimeapi.PodSandboxStatsResponse, error) {
	id, err := s.Catalog.ID(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	r, err := s.Catalog.Get(id)
	if err != nil {
		return nil, err
	}
	traffic := s.meter().Traffic([]*sandbox.Record{r})
	return &runtimeapi.PodSandboxStatsResponse{Stats: s.podStats(r, traffic)}, nil
}

// ListPodSandboxStats returns what each ready pod uses.
func (s *Server) ListPodSandboxStats(
	ctx context.Context, req *runtimeapi.ListPodSandboxStatsRequest,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: s.listPodStats(ctx, req.Filter)}, nil
}

// StreamPodSandboxStats sends the same in parts.
func (s *Server) StreamPodSandboxStats(
	req *runtimeapi.StreamPodSandboxStatsRequest, to runtimeapi.RuntimeService_StreamPodSandboxStatsServer,
) error {
	return sendPages(s.listPodStats(to.Context(), req.Filter), func(page []*runtimeapi.PodSandboxStats) error {
		return to.Send(&runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: page})
	})
}

func (s *Server) meter() *meter.Meter { return s.Pods.Meter }

func (s *Server) listContainerStats(
	ctx context.Context, f *runtimeapi.ContainerStatsFilter,
) []*runtimeapi.ContainerStats {
	return sideBySide(s.ready(ctx), func(pods []*sandbox.Record) (list []*runtimeapi.ContainerStats) {
		for _, r := range pods {
			if !strings.HasPrefix(string(r.ID), f.GetPodSandboxId()) {
				continue
			}
			for _, c := range r.Containers {
				if !c.Listed() || !strings.HasPrefix(string(c.ID), f.GetId()) || !matchLabels(c.Config.Get().Labels,
					f.GetLabelSelector()) {
					continue
				}
				if stats, lives := s.containerStats(r, c); lives {
					list = append(list, stats)
				}
			}
		}
		return list
	})
}

func (s *Server) listPodStats(
	ctx context.Context, f *runtimeapi.PodSandboxStatsFilter,
) []*runtimeapi.PodSandboxStats {
	pods := slices.DeleteFunc(s.ready(ctx), func(r *sandbox.Record) bool {
		return !strings.HasPrefix(string(r.ID), f.GetId()) || !matchLabels(r.Config.Get().Labels, f.GetLabelSelector())
	})
	return sideBySide(pods, func(pods []*sandbox.Record) (list []*runtimeapi.PodSandboxStats) {
		traffic := s.meter().Traffic(pods)
		for _, r := range pods {
			list = append(list, s.podStats(r, traffic))
		}
		return list
	})
}

// ready returns the listed pods that are ready. Others use nothing.
func (s *Server) ready(ctx context.Context) []*sandbox.Record {
	return slices.DeleteFunc(s.listed(ctx), func(r *sandbox.Record) bool { return r.State != sandbox.Ready })
}

// sideBySide shares work on pods out to the processors. The order is kept.
func sideBySide[T any](pods []*sandbox.Record, do func([]*sandbox.Record) []T) []T {
	workers := runtime.GOMAXPROCS(0)
	parts := slices.Collect(slices.Chunk(pods, max(1, (len(pods)+workers-1)/workers)))
	done := make([][]T, len(parts))
	var g errgroup.Group
	for i, part := range parts {
		g.Go(func() error {
			done[i] = do(part)
			return nil
		})
	}
	_ = g.Wait() // none fails
	return slices.Concat(done...)
}

func (s *Server) containerStats(
	r *sandbox.Record, c *sandbox.Container,
) (stats *runtimeapi.ContainerStats, lives bool) {
	stats, _, lives = s.containerUse(r, c)
	return stats, lives
}

// containerUse has what a container uses, for a kubelet and as it was read.
func (s *Server) containerUse(
	r *sandbox.Record, c *sandbox.Container,
) (_ *runtimeapi.ContainerStats, u meter.Use, lives bool) {
	cfg := c.Config.Get()
	stats := &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id: string(c.ID), Metadata: cfg.Metadata, Labels: cfg.Labels, Annotations: cfg.Annotations,
		},
		WritableLayer: s.writableLayer(r, c),
	}
	if u, lives = s.meter().Container(r, c, cgroup.Stats); lives {
		stats.Cpu, stats.Memory, stats.Swap, stats.Io = cpuUsage(u), memoryUsage(u), swapUsage(u), ioUsage(u)
	}
	return stats, u, lives
}

func (s *Server) writableLayer(r *sandbox.Record, c *sandbox.Container) *runtimeapi.FilesystemUsage {
	w := s.meter().Writable(r, c)
	return &runtimeapi.FilesystemUsage{
		Timestamp: w.At.UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: s.ContainersRoot},
		UsedBytes: value(w.Bytes), InodesUsed: value(w.Inodes),
	}
}

func (s *Server) podStats(r *sandbox.Record, traffic map[sandbox.ID]network.Traffic) *runtimeapi.PodSandboxStats {
	cfg, linux := r.Config.Get(), &runtimeapi.LinuxPodSandboxStats{}
	stats := &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{Id: string(r.ID), Metadata: cfg.Metadata, Labels: cfg.Labels,
			Annotations: cfg.Annotations},
		Linux: linux,
	}
	var parts []meter.Use
	for _, c := range r.Containers {
		if !c.Listed() {
			continue
		}
		if ctr, u, lives := s.containerUse(r, c); lives {
			linux.Containers, parts = append(linux.Containers, ctr), append(parts, u)
		}
	}
	u, ok := s.meter().Pod(r, cgroup.Stats, parts)
	if !ok {
		return stats
	}
	linux.Cpu, linux.Memory, linux.Io = cpuUsage(u), memoryUsage(u), ioUsage(u)
	if u.Tasks.Known {
		linux.Process = &runtimeapi.ProcessUsage{Timestamp: u.At.UnixNano(), ProcessCount: value(u.Tasks.Current)}
	}
	if t, ok := traffic[r.ID]; ok {
		linux.Network = networkUsage(t)
	}
	return stats
}

// networkUsage has the default interface among the others, too. The proto's comment wants it left out; containerd and
// cAdvisor have it in both places, and the Summary API of a kubelet tells only of those in the list.
func networkUsage(t network.Traffic) *runtimeapi.NetworkUsage {
	n := &runtimeapi.NetworkUsage{Timestamp: t.At.UnixNano()}
	for i, c := range t.Interfaces {
		usage := &runtimeapi.NetworkInterfaceUsage{
			Name: c.Name, RxBytes: value(c.RxBytes), RxErrors: value(c.RxErrors), TxBytes: value(c.TxBytes),
			TxErrors: value(c.TxErrors),
		}
		if i == 0 {
			n.DefaultInterface = usage
		}
		n.Interfaces = append(n.Interfaces, usage)
	}
	return n
}

func cpuUsage(u meter.Use) *runtimeapi.CpuUsage {
	if !u.CPU.Known {
		return nil
	}
	out := &runtimeapi.CpuUsage{Timestamp: u.At.UnixNano(), UsageCoreNanoSeconds: value(u.CPU.Usage),
		Psi: psi(u.CPUPressure)}
	if u.Rated {
		out.UsageNanoCores = value(u.NanoCores)
	}
	return out
}

func memoryUsage(u meter.Use) *runtimeapi.MemoryUsage {
	m := u.Memory
	if !m.Known {
		return nil
	}
	out := &runtimeapi.MemoryUsage{
		Timestamp: u.At.UnixNano(), WorkingSetBytes: value(m.WorkingSet), UsageBytes: value(m.Usage), RssBytes: value(m.RSS),
		PageFaults: value(m.Faults), MajorPageFaults: value(m.MajorFaults), Psi: psi(u.MemoryPressure),
	}
	if m.Limit != cgroup.Unlimited {
		out.AvailableBytes = value(m.Limit - min(m.WorkingSet, m.Limit))
	}
	return out
}

func swapUsage(u meter.Use) *runtimeapi.SwapUsage {
	if !u.Swap.Known {
		return nil
	}
	out := &runtimeapi.SwapUsage{Timestamp: u.At.UnixNano(), SwapUsageBytes: value(u.Swap.Usage)}
	if u.Swap.Limit != cgroup.Unlimited {
		out.SwapAvailableBytes = value(u.Swap.Limit - min(u.Swap.Usage, u.Swap.Limit))
	}
	return out
}

func ioUsage(u meter.Use) *runtimeapi.IoUsage {
	if !u.IOPressure.Known {
		return nil
	}
	return &runtimeapi.IoUsage{Timestamp: u.At.UnixNano(), Psi: psi(u.IOPressure)}
}

func psi(p cgroup.Pressure) *runtimeapi.PsiStats {
	if !p.Known {
		return nil
	}
	return &runtimeapi.PsiStats{Full: psiData(p.Full), Some: psiData(p.Some)}
}

func psiData(s cgroup.Stall) *runtimeapi.PsiData {
	return &runtimeapi.PsiData{Total: s.Total, Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
}

func value(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }
