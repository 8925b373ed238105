package cri

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/sandbox"
	"berth/internal/spec"
)

// RunPodSandbox makes a pod and starts it.
func (s *Server) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (
	*runtimeapi.RunPodSandboxResponse, error) {
	id, err := s.Pods.Run(ctx, req.Config, req.RuntimeHandler)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: string(id)}, nil
}

// StopPodSandbox ends the containers and the network of a pod. Stopping an unknown pod succeeds, as CRI requires.
func (s *Server) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (
	*runtimeapi.StopPodSandboxResponse, error) {
	err := end(s.Catalog.ID, req.PodSandboxId, func(id sandbox.ID) error { return s.Pods.Stop(ctx, id) })
	if err != nil {
		return nil, err
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox removes a pod and its containers. Removing an unknown pod succeeds, as CRI requires.
func (s *Server) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (
	*runtimeapi.RemovePodSandboxResponse, error) {
	err := end(s.Catalog.ID, req.PodSandboxId, func(id sandbox.ID) error { return s.Pods.Remove(ctx, id) })
	if err != nil {
		return nil, err
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus returns the status of a pod and its containers.
func (s *Server) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (
	*runtimeapi.PodSandboxStatusResponse, error) {
	id, err := s.Catalog.ID(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	r, err := s.Catalog.Get(id)
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.PodSandboxStatusResponse{Status: podStatus(r), ContainersStatuses: s.containerStatuses(r),
		Timestamp: now.UnixNano()}
	if req.Verbose {
		if resp.Info, err = verbose(map[string]any{"info": s.podInfo(r)}); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// ListPodSandbox lists pods, the newest first.
func (s *Server) ListPodSandbox(
	ctx context.Context, req *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: s.podItems(ctx, req.Filter)}, nil
}

func (s *Server) podItems(
	ctx context.Context, f *runtimeapi.PodSandboxFilter,
) (items []*runtimeapi.PodSandbox) {
	for _, r := range s.listed(ctx) {
		if item := podItem(r); matchPod(item, f) {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, func(a, b *runtimeapi.PodSandbox) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	return items
}

func matchPod(p *runtimeapi.PodSandbox, f *runtimeapi.PodSandboxFilter) bool {
	return strings.HasPrefix(p.Id, f.GetId()) &&
		(f.GetState() == nil || f.State.State == p.State) &&
		matchLabels(p.Labels, f.GetLabelSelector())
}

func matchLabels(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func podState(r *sandbox.Record) runtimeapi.PodSandboxState {
	if r.State == sandbox.Ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func podItem(r *sandbox.Record) *runtimeapi.PodSandbox {
	cfg := r.Config.Get()
	return &runtimeapi.PodSandbox{
		Id: string(r.ID), Metadata: cfg.Metadata, State: podState(r), CreatedAt: r.CreatedAt.UnixNano(),
		Labels: cfg.Labels, Annotations: cfg.Annotations, RuntimeHandler: r.Handler,
	}
}

func podStatus(r *sandbox.Record) *runtimeapi.PodSandboxStatus {
	cfg := r.Config.Get()
	st := &runtimeapi.PodSandboxStatus{
		Id: string(r.ID), Metadata: cfg.Metadata, State: podState(r), CreatedAt: r.CreatedAt.UnixNano(),
		Labels: cfg.Labels, Annotations: cfg.Annotations, RuntimeHandler: r.Handler,
		Network: &runtimeapi.PodSandboxNetworkStatus{},
		Linux:   &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: namespaceOptions(cfg)}},
	}
	if r.State == sandbox.Ready {
		for i, ip := range r.IPs {
			if i == 0 {
				st.Network.Ip = ip.String()
				continue
			}
			st.Network.AdditionalIps = append(st.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip.String()})
		}
	}
	return st
}

// namespaceOptions repeats what was asked for.
func namespaceOptions(cfg *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
	o := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	return &runtimeapi.NamespaceOption{
		Network: o.GetNetwork(), Pid: o.GetPid(), Ipc: o.GetIpc(), TargetId: o.GetTargetId(),
		UsernsOptions: o.GetUsernsOptions(),
	}
}

// podInfo is what a verbose status adds.
func (s *Server) podInfo(r *sandbox.Record) map[string]any {
	info := map[string]any{
		"state": r.State, "boot": r.Boot, "runtime": r.Runtime, "paths": s.Pods.Paths(r), "config": r.Config,
	}
	if r.Stuck != nil {
		info["stuck"] = r.Stuck
	}
	if r.SELinux != (spec.Labels{}) {
		info["selinux"] = r.SELinux
	}
	if r.Init.PID != 0 {
		info["pid"] = r.Init.PID
	}
	return info
}
