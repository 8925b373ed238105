package cri

import (
	"context"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Exec returns the address at which a command in a container will be run, once.
func (s *Server) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	id, err := s.Catalog.ContainerID(req.ContainerId)
	if err == nil {
		err = s.Pods.Sessions.Running(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	req = proto.Clone(req).(*runtimeapi.ExecRequest)
	req.ContainerId = string(id)
	url, err := s.Streams.Exec(req)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecResponse{Url: url}, nil
}

// Attach returns the address at which a container can be attached to, once.
func (s *Server) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	id, err := s.Catalog.ContainerID(req.ContainerId)
	if err == nil {
		err = s.Pods.Sessions.Attachable(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	req = proto.Clone(req).(*runtimeapi.AttachRequest)
	req.ContainerId = string(id)
	url, err := s.Streams.Attach(req)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.AttachResponse{Url: url}, nil
}

// PortForward returns the address at which ports of a pod can be forwarded, once.
func (s *Server) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (
	*runtimeapi.PortForwardResponse, error) {
	id, err := s.Catalog.ID(req.PodSandboxId)
	if err == nil {
		_, err = s.Pods.Sessions.NetNS(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	req = proto.Clone(req).(*runtimeapi.PortForwardRequest)
	req.PodSandboxId = string(id)
	url, err := s.Streams.PortForward(req)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PortForwardResponse{Url: url}, nil
}
