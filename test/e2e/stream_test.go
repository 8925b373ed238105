package e2e

import (
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// collect reads a stream of lists to its end.
func collect[R, T any](r rig, stream grpc.ServerStreamingClient[R], err error, items func(*R) []T) (all []T) {
	r.Helper()
	r.ok(err)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		r.ok(err)
		if page := items(resp); len(page) > 0 {
			all = append(all, page...)
		} else {
			r.Error("a message without items")
		}
	}
}

// same checks that a stream brought what the list has.
func same[T proto.Message](r rig, what string, streamed, listed []T, least int) {
	r.Helper()
	if len(streamed) != len(listed) || len(listed) < least {
		r.Errorf("%s: %d streamed, %d listed, at least %d wanted", what, len(streamed), len(listed), least)
		return
	}
	for i := range streamed {
		if !proto.Equal(streamed[i], listed[i]) {
			r.Errorf("%s: item %d is %v, listed is %v", what, i, streamed[i], listed[i])
		}
	}
}

// TestStreamsOfLists compares each stream of a list with the list, under the same filters.
func TestStreamsOfLists(t *testing.T) {
	each(t, func(r rig) {
		// Not by the kubelet's client: it falls back to the lists where there is no stream.
		conn, err := grpc.NewClient("unix:"+r.n.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		r.ok(err)
		defer func() { _ = conn.Close() }()
		node, images := v1.NewRuntimeServiceClient(conn), v1.NewImageServiceClient(conn)
		mine := map[string]string{"stream-of-lists": unique(r.T)}
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Labels = mine })
		for _, name := range []string{"a", "b"} {
			p.create(busybox(name, "true", func(c *v1.ContainerConfig) { c.Labels = mine }))
		}
		ready := &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_READY}
		notReady := &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_NOTREADY}
		for _, f := range []*v1.PodSandboxFilter{{Id: p.id}, {LabelSelector: mine}, {LabelSelector: mine, State: ready},
			{LabelSelector: mine, State: notReady}} {
			listed, err := r.n.Runtime.ListPodSandbox(ctx(), f)
			r.ok(err)
			stream, err := node.StreamPodSandboxes(ctx(), &v1.StreamPodSandboxesRequest{Filter: f})
			least := 1
			if f.State == notReady {
				least = 0
			}
			same(r, "pods of "+f.String(), collect(r, stream, err, (*v1.StreamPodSandboxesResponse).GetPodSandboxes), listed,
				least)
		}
		exited := &v1.ContainerStateValue{State: v1.ContainerState_CONTAINER_EXITED}
		for _, f := range []*v1.ContainerFilter{{PodSandboxId: p.id}, {LabelSelector: mine},
			{LabelSelector: mine, State: exited}} {
			listed, err := r.n.Runtime.ListContainers(ctx(), f)
			r.ok(err)
			stream, err := node.StreamContainers(ctx(), &v1.StreamContainersRequest{Filter: f})
			least := 2
			if f.State == exited {
				least = 0
			}
			same(r, "containers of "+f.String(), collect(r, stream, err, (*v1.StreamContainersResponse).GetContainers), listed,
				least)
		}
		for want, f := range map[int]*v1.ImageFilter{1: {Image: &v1.ImageSpec{Image: ref("busybox:latest")}},
			0: {Image: &v1.ImageSpec{Image: "nobody/has:this"}}} {
			listed, err := r.n.Images.ListImages(ctx(), f)
			r.ok(err)
			stream, err := images.StreamImages(ctx(), &v1.StreamImagesRequest{Filter: f})
			same(r, "images of "+f.String(), collect(r, stream, err, (*v1.StreamImagesResponse).GetImages), listed, want)
		}
		if all := func() []*v1.Image {
			stream, err := images.StreamImages(ctx(), &v1.StreamImagesRequest{})
			return collect(r, stream, err, (*v1.StreamImagesResponse).GetImages)
		}(); len(all) == 0 {
			r.Error("no images without a filter")
		}
	})
}
