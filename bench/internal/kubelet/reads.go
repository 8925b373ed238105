package kubelet

import (
	"context"
	"fmt"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Read is a call that changes nothing.
type Read struct {
	Name string
	call func(ctx context.Context, p *Pod) error
}

// Reads are the calls that a kubelet repeats for as long as it runs.
var Reads = []Read{
	{"ListPodSandbox", func(ctx context.Context, p *Pod) error {
		_, err := p.runtime.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		return err
	}},
	{"ListContainers", func(ctx context.Context, p *Pod) error {
		_, err := p.runtime.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
		return err
	}},
	{"PodSandboxStatus", func(ctx context.Context, p *Pod) error {
		_, err := p.runtime.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.ID})
		return err
	}},
	{"ContainerStatus", func(ctx context.Context, p *Pod) error {
		_, err := p.runtime.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: p.Container})
		return err
	}},
	{"Status", func(ctx context.Context, p *Pod) error {
		_, err := p.runtime.runtime.Status(ctx, &cri.StatusRequest{})
		return err
	}},
	{"ListImages", func(ctx context.Context, p *Pod) error {
		_, err := p.runtime.images.ListImages(ctx, &cri.ListImagesRequest{})
		return err
	}},
}

// Time makes the call once, about the pod where it is about one.
func (r Read) Time(ctx context.Context, p *Pod) (time.Duration, error) {
	begin := time.Now()
	if err := r.call(ctx, p); err != nil {
		return 0, fmt.Errorf("%s: %s: %w", p.runtime.Name, r.Name, err)
	}
	return time.Since(begin), nil
}

// Relist is what a kubelet asks each second to see what became of its pods.
func (r *Runtime) Relist(ctx context.Context) error {
	if _, err := r.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{}); err != nil {
		return fmt.Errorf("%s: list pods: %w", r.Name, err)
	}
	if _, err := r.runtime.ListContainers(ctx, &cri.ListContainersRequest{}); err != nil {
		return fmt.Errorf("%s: list containers: %w", r.Name, err)
	}
	return nil
}
