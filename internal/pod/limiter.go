package pod

import (
	"context"
	"errors"
	"log/slog"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/op"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// The kinds of operation that change what a pod or container may use.
const (
	opLimit    = "change of the pod's resources"
	opCtrLimit = "change of the container's limits"
)

// Limiter changes what pods and containers may use while they live.
type Limiter struct {
	pods     *Catalog
	base     context.Context            // the daemon's, on which changes are made
	evict    func(container sandbox.ID) // stops a container in the background
	host     spec.Host
	notifier *notifier
	log      *slog.Logger
}

// newLimiter makes a Limiter, and the notifier of whom each needs the other.
func newLimiter(s *Pods) (*Limiter, *notifier) {
	l := &Limiter{
		pods: &s.Catalog, base: s.worker.ctx, host: s.bundle.Host, log: s.cfg.Log,
		evict: func(id sandbox.ID) {
			s.worker.background(func(ctx context.Context) { _ = s.StopContainer(ctx, id, 0) })
		},
	}
	l.notifier = &notifier{plugins: s.cfg.Plugins, limiter: l, log: s.cfg.Log}
	return l, l.notifier
}

// Container changes the limits of a container that is created or runs: all that want has, or none. What want does not
// mention stays as it is. From then on they are the container's, in its status and for the next daemon.
func (s *Limiter) Container(ctx context.Context, id sandbox.ID, want *runtimeapi.LinuxContainerResources) error {
	l, err := s.pods.adopted(ctx, id)
	if err != nil {
		return err
	}
	if want == nil {
		return nil
	}
	return l.limits.lane.Do(s.base, ctx, op.Op{Kind: opCtrLimit, Key: digest(want), Run: func(ctx context.Context) error {
		adjusted, err := s.consult(ctx, l, want)
		if err == nil {
			err = l.limits.set(ctx, l, adjusted)
		}
		if err != nil {
			return sandbox.InContainer("change the limits of ", string(l.id), l.p.id, err)
		}
		r := l.p.record()
		s.notifier.note(ctx, ContainerLimited, r, r.Container(l.id))
		return nil
	}})
}

// consult asks plugins what a container's limits are to be changed to.
func (s *Limiter) consult(
	ctx context.Context, l *container, want *runtimeapi.LinuxContainerResources,
) (*runtimeapi.LinuxContainerResources, error) {
	r := l.p.record()
	c := r.Container(l.id)
	if s.notifier.plugins == nil || c == nil || !c.Live() {
		return want, nil // set says why it cannot be done
	}
	all, changes, err := s.notifier.limits(ctx, r, c, want)
	if err != nil {
		return nil, pluginError(ctx, err)
	}
	s.Apply(ctx, changes)
	return all, nil
}

// Apply makes changes that plugins want, and returns those that failed.
func (s *Limiter) Apply(ctx context.Context, changes []Change) (failed []Change) {
	for _, ch := range changes {
		if err := s.apply(ctx, ch); err != nil {
			s.log.Warn("a change that a plugin asked for was not made to a container", "container", ch.Container, "error", err)
			failed = append(failed, ch)
		}
	}
	return failed
}

func (s *Limiter) apply(ctx context.Context, ch Change) error {
	if ch.Cannot != nil {
		return ch.Cannot
	}
	p, _, err := s.pods.findContainer(ch.Container)
	if err != nil {
		return err
	}
	if ch.Evict {
		s.evict(ch.Container)
	}
	l := p.containers.get(ch.Container)
	if l == nil {
		return nil
	}
	putBack := func() error { return nil }
	if ch.Pids != 0 {
		if putBack, err = l.limits.setPids(ctx, l, ch.Pids); err != nil {
			return err
		}
	}
	if ch.Limits == nil {
		return nil
	}
	if err := l.limits.set(ctx, l, ch.Limits); err != nil {
		return errors.Join(err, putBack())
	}
	return nil
}

// Pod takes over what a ready pod is meant to use in all: its configuration says it from then on, to its status, and to
// containers that are made in it. The pod's cgroup is its caller's, who has set its limits.
func (s *Limiter) Pod(
	ctx context.Context, id sandbox.ID, overhead, resources *runtimeapi.LinuxContainerResources,
) error {
	p, err := s.pods.find(id)
	if err != nil {
		return err
	}
	if err := p.waitAdopted(ctx); err != nil {
		return err
	}
	for what, r := range map[string]*runtimeapi.LinuxContainerResources{"overhead": overhead, "resources": resources} {
		if _, _, err := spec.Resources(r, s.host); err != nil {
			return fail.New(errdefs.ErrInvalidArgument, "change the resources of pod %s: %s: %w", id, what, err)
		}
	}
	key := digest(&runtimeapi.UpdatePodSandboxResourcesRequest{Overhead: overhead, Resources: resources})
	return p.lane.Do(s.base, ctx, op.Op{Kind: opLimit, Key: key, Run: func(ctx context.Context) error {
		if s.notifier.plugins != nil && p.record().State == sandbox.Ready {
			if err := s.notifier.podLimits(ctx, p.record(), overhead, resources); err != nil {
				return fail.About(fail.Detail{Pod: string(id)}, "change the resources of pod %s: %w", id,
					pluginError(ctx, err))
			}
		}
		err := p.update(ctx, "pod.limits", func(r *sandbox.Record) error {
			if r.State != sandbox.Ready {
				return fail.New(errdefs.ErrFailedPrecondition, "change the resources of pod %s: it is %s, not ready", id, r.State)
			}
			cfg := proto.Clone(r.Config.Get()).(*runtimeapi.PodSandboxConfig)
			if cfg.Linux == nil {
				cfg.Linux = &runtimeapi.LinuxPodSandboxConfig{}
			}
			if overhead != nil {
				cfg.Linux.Overhead = overhead
			}
			if resources != nil {
				cfg.Linux.Resources = resources
			}
			m, err := sandbox.NewPodConfig(cfg)
			r.Config = m
			return err
		})
		if err == nil {
			s.notifier.note(ctx, PodLimited, p.record(), nil)
		}
		return err
	}})
}
