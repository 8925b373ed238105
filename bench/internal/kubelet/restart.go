package kubelet

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AwaitList connects anew to a daemon that was restarted, and returns once it has listed as many of our pods, all
// ready, and as many running containers.
func (r *Runtime) AwaitList(ctx context.Context, pods int) error {
	_ = r.Close()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", r.Socket)
		if err == nil {
			_ = conn.Close()
			break
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("wait for %s to listen: %w", r.Name, err)
		}
	}
	if err := r.dial(); err != nil {
		return err
	}
	ready := &cri.PodSandboxFilter{
		State:         &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{label: r.Name},
	}
	running := &cri.ContainerFilter{
		State:         &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{label: r.Name},
	}
	for {
		p, err := r.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: ready})
		if err == nil && len(p.Items) == pods {
			c, err := r.runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: running})
			if err == nil && len(c.Containers) == pods {
				return nil
			}
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("wait until %s lists %d pods, of which it lists %d: %w",
				r.Name, pods, len(p.GetItems()), err)
		}
	}
}

// pause waits for so long, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// Reopen has the log of each pod's container reopened, which takes who writes it: all of them have been found again
// then.
func Reopen(ctx context.Context, pods []*Pod) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for _, p := range pods {
		g.Go(func() error {
			req := &cri.ReopenContainerLogRequest{ContainerId: p.Container}
			if _, err := p.runtime.runtime.ReopenContainerLog(ctx, req); err != nil {
				return fmt.Errorf("%s: reopen the log of pod %s: %w", p.runtime.Name, p.ID, err)
			}
			return nil
		})
	}
	return g.Wait()
}
