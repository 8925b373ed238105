// Package cri is the gRPC face of the daemon: it validates a request, calls what does the work, and turns errors into
// the gRPC codes that a kubelet acts on. It holds no state.
//
// The messages are those of k8s.io/cri-api; what is not implemented answers Unimplemented.
package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image"
	"berth/internal/network"
	"berth/internal/pod"
	"berth/internal/stream"
)

// RuntimeName is what Version answers; kubelets show it as <name>://<container id>.
const RuntimeName = "berth"

// APIVersion is the version of CRI that is spoken.
const APIVersion = "v1"

// Network is what the server needs of networks.
type Network interface {
	Status() network.Status        // waits a moment where no plugin has answered yet
	SetPodCIDR(cidrs string) error // writes the configuration made from the template, if there is one
}

// Server answers CRI. All fields are required by the time that the first call is let through.
type Server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	Pods    *pod.Pods
	Catalog *pod.Catalog // of Pods
	Images  *image.Store
	Network Network
	Streams *stream.Server
	// Release is the daemon's own version.
	Release string
	// SystemdCgroup says which cgroup driver is in force.
	SystemdCgroup bool
	// Handlers tells the runtime handlers that are worth asking for, the default's "" first. At first it waits a moment.
	Handlers func() []*runtimeapi.RuntimeHandler
	// HasHandler reports whether a pod can ask for a runtime handler of this name. It does not wait.
	HasHandler func(name string) bool
	// ListByHand reports whether the pods of berth run are in the lists of all clients; nil is no. It does not wait.
	ListByHand func() bool
	// Info is shown by a verbose Status.
	Info func() map[string]any
	// ContainersRoot is a path on the file system of the containers' writable layers, ImagesRoot on that of the images.
	// They are the same path when it is one file system.
	ContainersRoot, ImagesRoot string
}

// Register makes both services of CRI known to g.
func (s *Server) Register(g *grpc.Server) {
	runtimeapi.RegisterRuntimeServiceServer(g, s)
	runtimeapi.RegisterImageServiceServer(g, s)
}

// Version returns the name and version of the runtime, and the version of CRI.
func (s *Server) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version:     "0.1.0", // of the kubelet's runtime API, as every runtime answers
		RuntimeName: RuntimeName, RuntimeVersion: semantic(s.Release), RuntimeApiVersion: APIVersion,
	}, nil
}

var semver = regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]+)?$`)

// semantic is a release as kubelets read it. One built from a commit without a tag is no version to them, and the
// node's version of its runtime would be "Unknown".
func semantic(release string) string {
	if semver.MatchString(release) {
		return release
	}
	return "0.0.0+" + release
}

// Status returns whether the runtime and the network are ready, and why not.
func (s *Server) Status(_ context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	handlers := s.Handlers() // first: it may wait, and the network is told as it is then
	n := s.Network.Status()
	resp := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			runtimeReady(s),
			{Type: runtimeapi.NetworkReady, Status: n.Ready, Reason: n.Reason, Message: n.Message},
		}},
		RuntimeHandlers: handlers,
		Features: &runtimeapi.RuntimeFeatures{
			SupplementalGroupsPolicy: true, MountOptions: true,
			// A user namespace does not mind whose network its pod has.
			UserNamespacesHostNetwork: slices.ContainsFunc(handlers, func(h *runtimeapi.RuntimeHandler) bool {
				return h.Features.GetUserNamespaces()
			}),
		},
	}
	if req.Verbose {
		info, err := verbose(s.Info())
		if err != nil {
			return nil, err
		}
		resp.Info = info
	}
	return resp, nil
}

// runtimeReady is false where pods may live whose names are unknown: a kubelet would make them once more. It stays true
// for all else, since a kubelet whose runtime is not ready stops caring for every pod of the node.
func runtimeReady(s *Server) *runtimeapi.RuntimeCondition {
	n := 0
	if s.Pods != nil {
		n = pod.Nameless(s.Pods)
	}
	if n == 0 {
		return &runtimeapi.RuntimeCondition{Type: runtimeapi.RuntimeReady, Status: true}
	}
	return &runtimeapi.RuntimeCondition{
		Type: runtimeapi.RuntimeReady, Reason: "PodsWithoutName",
		Message: fmt.Sprintf("%d pods may run whose records and identities cannot be read, so that they could be made "+
			"twice: berth doctor names them", n),
	}
}

// verbose encodes each value as JSON, as clients expect of the info map.
func verbose(values map[string]any) (map[string]string, error) {
	out := map[string]string{}
	for k, v := range values {
		data, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", k, err)
		}
		out[k] = string(data)
	}
	return out, nil
}

// RuntimeConfig tells the kubelet which cgroup driver to use.
func (s *Server) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (
	*runtimeapi.RuntimeConfigResponse, error) {
	driver := runtimeapi.CgroupDriver_CGROUPFS
	if s.SystemdCgroup {
		driver = runtimeapi.CgroupDriver_SYSTEMD
	}
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// UpdateRuntimeConfig puts the node's pod CIDRs in force. An empty value, which kubelets send while they have none,
// changes nothing.
func (s *Server) UpdateRuntimeConfig(_ context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (
	*runtimeapi.UpdateRuntimeConfigResponse, error) {
	if cidr := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr(); cidr != "" {
		if err := s.Network.SetPodCIDR(cidr); err != nil {
			return nil, err
		}
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}
