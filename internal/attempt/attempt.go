// Package attempt starts what has ended of a pod anew, as a kubelet does: a container becomes a new container of the
// next attempt, in the same pod while that is ready, else in a new sandbox of the pod. Name, request and log directory
// stay; ids and addresses change.
//
// Start is all of it. Whoever calls it says what there is of the pod, and gives it the few calls of CRI that it takes.
package attempt

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
)

// Runtime makes and removes pods and containers. A call that is repeated with the same configuration returns the id of
// what the first one has made; to remove what is not there succeeds.
type Runtime interface {
	RunPod(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (id string, err error)
	Create(ctx context.Context, pod string, c *runtimeapi.ContainerConfig, cfg *runtimeapi.PodSandboxConfig) (string,
		error)
	Start(ctx context.Context, container string) error
	RemovePod(ctx context.Context, id string) error
	RemoveContainer(ctx context.Context, id string) error
}

// Pod is a pod as it is: its newest sandbox, and those in whose place that one came and which are still there.
type Pod struct {
	ID, Handler string
	Ready       bool
	Config      *runtimeapi.PodSandboxConfig
	Older       []string    // ids
	Containers  []Container // of all sandboxes
}

// Container is a container as it is.
type Container struct {
	ID, Pod string
	State   runtimeapi.ContainerState
	Config  *runtimeapi.ContainerConfig
}

// in reports whether the container is in a state in the pod's newest sandbox, which can be no other than ready then.
func (c Container) in(p Pod, s runtimeapi.ContainerState) bool {
	return p.Ready && c.Pod == p.ID && c.State == s
}

// Name is what all attempts of the container have in common.
func (c Container) Name() string    { return c.Config.GetMetadata().GetName() }
func (c Container) attempt() uint32 { return c.Config.GetMetadata().GetAttempt() }

// Started is a container that was started.
type Started struct{ ID, Name string }

// Start starts the containers anew that have ended and that wanted says, each in its last attempt. Where the pod is not
// ready, a new sandbox takes its place, and with it goes what is not wanted. Of a container that is started in the same
// pod the attempt before stays, so that its log can be read; older ones are removed. What was started is returned also
// with an error.
func Start(ctx context.Context, rt Runtime, p Pod, wanted func(Container) bool) (all []Started, err error) {
	var again []Container
	for _, c := range Last(p.Containers) {
		if !c.in(p, runtimeapi.ContainerState_CONTAINER_RUNNING) && wanted(c) {
			again = append(again, c)
		}
	}
	if len(again) == 0 {
		return nil, nil
	}
	pod, cfg := p.ID, p.Config
	if !p.Ready {
		cfg = proto.Clone(cfg).(*runtimeapi.PodSandboxConfig)
		cfg.Metadata.Attempt++
		if pod, err = rt.RunPod(ctx, cfg, p.Handler); err != nil {
			return nil, fmt.Errorf("run the pod anew: %w", err)
		}
	}
	var failed []error
	for _, c := range again {
		id, err := c.ID, error(nil)
		made := c.in(p, runtimeapi.ContainerState_CONTAINER_CREATED) // and whoever made it did not come to start it
		if !made {
			id, err = rt.Create(ctx, pod, nextOf(c), cfg)
		}
		fresh := !made && err == nil
		if err == nil {
			err = rt.Start(ctx, id)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("start container %s anew: %w", c.Name(), err))
			if p.Ready && fresh { // or failed attempts would pile up
				failed = append(failed, forget(ctx, rt, p, c))
			}
			continue
		}
		all = append(all, Started{id, c.Name()})
		if p.Ready && !made {
			failed = append(failed, forget(ctx, rt, p, c))
		}
	}
	if len(all) < len(again) {
		return all, errors.Join(failed...) // what an older sandbox has is still needed
	}
	if !p.Ready {
		p.Older = append(slices.Clone(p.Older), p.ID)
	}
	for _, id := range p.Older {
		failed = append(failed, rt.RemovePod(ctx, id))
	}
	return all, errors.Join(failed...)
}

// nextOf is the request for the next attempt of a container. It has a log of its own, and has not started by itself
// yet.
func nextOf(c Container) *runtimeapi.ContainerConfig {
	next := proto.Clone(c.Config).(*runtimeapi.ContainerConfig)
	delete(next.Annotations, annotation.KeyRestarts)
	next.Metadata.Attempt++
	if next.LogPath != "" {
		dir, base := path.Split(next.LogPath)
		base = strings.TrimSuffix(base, ".log")
		if n := c.attempt(); n > 0 {
			base = strings.TrimSuffix(base, fmt.Sprintf("_%d", n))
			if base == fmt.Sprintf("%s.%d", c.Name(), n) { // as earlier releases called it
				base = c.Name()
			}
		}
		next.LogPath = fmt.Sprintf("%s%s_%d.log", dir, base, next.Metadata.Attempt) // no name of berth run has _
	}
	return next
}

// Last are the last attempts of each container, in the order of the list.
func Last(all []Container) []Container {
	return slices.DeleteFunc(slices.Clone(all), func(c Container) bool {
		return slices.ContainsFunc(all, func(o Container) bool { return o.Name() == c.Name() && o.attempt() > c.attempt() })
	})
}

// forget removes the attempts before c.
func forget(ctx context.Context, rt Runtime, p Pod, c Container) error {
	var failed []error
	for _, old := range p.Containers {
		if old.Pod == p.ID && old.Name() == c.Name() && old.attempt() < c.attempt() {
			failed = append(failed, rt.RemoveContainer(ctx, old.ID))
		}
	}
	return errors.Join(failed...)
}
