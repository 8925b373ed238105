package cri

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pageSize is how much of a list goes into one message, in bytes: far below what any client takes, and enough that a
// message costs little.
const pageSize = 1 << 20

// sendPages sends a list in messages of about pageSize, each item once and in order. An item that is larger goes alone.
// Of an empty list nothing is sent.
func sendPages[T proto.Message](items []T, send func([]T) error) error {
	for len(items) > 0 {
		n, size := 1, proto.Size(items[0])
		for ; n < len(items); n++ {
			if size += proto.Size(items[n]); size > pageSize {
				break
			}
		}
		if err := send(items[:n]); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// StreamPodSandboxes sends what ListPodSandbox lists.
func (s *Server) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest,
	stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	return sendPages(s.podItems(stream.Context(), req.Filter), func(page []*runtimeapi.PodSandbox) error {
		return stream.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: page})
	})
}

// StreamContainers sends what ListContainers lists.
func (s *Server) StreamContainers(req *runtimeapi.StreamContainersRequest,
	stream grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	return sendPages(s.containerItems(stream.Context(), req.Filter), func(page []*runtimeapi.Container) error {
		return stream.Send(&runtimeapi.StreamContainersResponse{Containers: page})
	})
}

// StreamImages sends what ListImages lists.
func (s *Server) StreamImages(req *runtimeapi.StreamImagesRequest,
	stream grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	return sendPages(s.imageItems(stream.Context(), req.Filter), func(page []*runtimeapi.Image) error {
		return stream.Send(&runtimeapi.StreamImagesResponse{Images: page})
	})
}
