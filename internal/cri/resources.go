package cri

import (
	"context"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// UpdateContainerResources changes the limits of a container: all or none.
func (s *Server) UpdateContainerResources(ctx context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (
	*runtimeapi.UpdateContainerResourcesResponse, error) {
	id, err := s.Catalog.ContainerID(req.ContainerId)
	if err == nil && req.Windows != nil {
		err = fail.New(errdefs.ErrInvalidArgument, "change the limits of container %s: this is not a Windows node", id)
	}
	if err == nil {
		err = s.Pods.Limiter.Container(ctx, id, req.Linux)
	}
	if err != nil {
		return nil, err
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// UpdatePodSandboxResources notes the limits of a pod as a whole.
func (s *Server) UpdatePodSandboxResources(ctx context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (
	*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	id, err := s.Catalog.ID(req.PodSandboxId)
	if err == nil {
		err = s.Pods.Limiter.Pod(ctx, id, req.Overhead, req.Resources)
	}
	if err != nil {
		return nil, err
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}
