package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/internal/cgroup/limits"
	"berth/internal/cri/cadvisor"
	"berth/internal/meter"
	"berth/internal/sandbox"
)

// ListMetricDescriptors returns the descriptors of all metrics. They stay the same as long as the daemon runs.
func (s *Server) ListMetricDescriptors(
	context.Context, *runtimeapi.ListMetricDescriptorsRequest,
) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: cadvisor.Descriptors()}, nil
}

// ListPodSandboxMetrics returns the metrics of each ready pod and of its containers.
func (s *Server) ListPodSandboxMetrics(
	ctx context.Context, _ *runtimeapi.ListPodSandboxMetricsRequest,
) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: s.podMetrics(ctx)}, nil
}

// StreamPodSandboxMetrics sends the same in parts.
func (s *Server) StreamPodSandboxMetrics(
	_ *runtimeapi.StreamPodSandboxMetricsRequest, to runtimeapi.RuntimeService_StreamPodSandboxMetricsServer,
) error {
	return sendPages(s.podMetrics(to.Context()), func(page []*runtimeapi.PodSandboxMetrics) error {
		return to.Send(&runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: page})
	})
}

func (s *Server) podMetrics(ctx context.Context) []*runtimeapi.PodSandboxMetrics {
	disk := cadvisor.DiskOf(s.ContainersRoot)
	return sideBySide(s.ready(ctx), func(pods []*sandbox.Record) (list []*runtimeapi.PodSandboxMetrics) {
		traffic := s.meter().Traffic(pods)
		for _, r := range pods {
			m := &runtimeapi.PodSandboxMetrics{PodSandboxId: string(r.ID)}
			var parts []meter.Use
			for _, c := range r.Containers {
				if !c.Listed() {
					continue
				}
				if u, lives := s.meter().Container(r, c, cgroup.Everything); lives {
					parts = append(parts, u)
					m.ContainerMetrics = append(m.ContainerMetrics, &runtimeapi.ContainerMetrics{
						ContainerId: string(c.ID), Metrics: cadvisor.Metrics(s.containerSubject(r, c, u, disk)),
					})
				}
			}
			u, _ := s.meter().Pod(r, cgroup.Everything, parts)
			meta := r.Config.Get().Metadata
			m.Metrics = cadvisor.Metrics(&cadvisor.Subject{
				Labels: cadvisor.Labels{Cgroup: s.meter().PodCgroup(r), Namespace: meta.GetNamespace(), Pod: meta.GetName()},
				Usage:  u.Usage, Began: r.CreatedAt, Traffic: traffic[r.ID],
			})
			list = append(list, m)
		}
		return list
	})
}

func (s *Server) containerSubject(
	r *sandbox.Record, c *sandbox.Container, u meter.Use, disk *cadvisor.Disk,
) *cadvisor.Subject {
	pod, ctr := r.Config.Get().Metadata, c.Config.Get()
	path, _ := cgroup.TreePath(c.Cgroup) // it was read by that just now
	subject := &cadvisor.Subject{
		Labels: cadvisor.Labels{
			Container: ctr.Metadata.GetName(), Cgroup: path, Image: ctr.Image.GetImage(), Name: string(c.ID),
			Namespace: pod.GetNamespace(), Pod: pod.GetName(),
		},
		Usage: u.Usage, Began: c.StartedAt,
	}
	// A weight stands for other shares by the way of each runtime. Those that it was made of are known.
	if asked := uint64(max(0, c.Limits().GetCpuShares())); asked > 0 && limits.MadeOf(u.CPU.Weight, asked) {
		subject.Usage.CPU.Shares = asked
	}
	if name := ctr.Image.GetUserSpecifiedImage(); name != "" {
		subject.Labels.Image = name
	}
	if disk != nil {
		w, d := s.meter().Writable(r, c), *disk
		d.Used, d.At = w.Bytes, w.At
		if c.Storage != nil && c.Storage.Bytes > 0 {
			d.Size = min(d.Size, c.Storage.Bytes)
		}
		if c.Storage != nil && c.Storage.Inodes > 0 {
			d.Inodes = min(d.Inodes, c.Storage.Inodes)
			d.FreeInodes = min(d.FreeInodes, c.Storage.Inodes-min(c.Storage.Inodes, w.Inodes))
		}
		subject.Disk = &d
	}
	if pids, err := s.meter().Processes(c); err == nil {
		subject.Processes = cadvisor.CountProcesses(pids, c.Process.PID)
	}
	return subject
}
