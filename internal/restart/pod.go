package restart

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/attempt"
	"berth/internal/look"
	"berth/internal/op"
	"berth/internal/sandbox"
)

// pod is a pod in all its sandboxes, as it is now.
type pod struct {
	newest *sandbox.Record // nil when there is none any more
	known  attempt.Pod
	of     map[string]*sandbox.Record // the pods of the containers
}

// find finds a pod among the records of all.
func find(all []*sandbox.Record, of name) *pod {
	p := &pod{of: map[string]*sandbox.Record{}}
	var own []*sandbox.Record
	for _, r := range all {
		if !r.ByHand() || nameOf(r) != of {
			continue
		}
		own = append(own, r)
		if p.newest == nil || attemptOf(r) > attemptOf(p.newest) {
			p.newest = r
		}
	}
	for _, r := range own {
		if r != p.newest {
			p.known.Older = append(p.known.Older, string(r.ID))
		}
		for _, c := range r.Containers {
			if !c.Listed() {
				continue
			}
			p.of[string(c.ID)] = r
			p.known.Containers = append(p.known.Containers, attempt.Container{
				ID: string(c.ID), Pod: string(r.ID), State: c.State.OfContainer(), Config: c.Config.Get(),
			})
		}
	}
	if r := p.newest; r != nil {
		p.known.ID, p.known.Handler, p.known.Config = string(r.ID), r.Handler, r.Config.Get()
		p.known.Ready = r.State == sandbox.Ready
	}
	return p
}

func attemptOf(r *sandbox.Record) uint32 { return r.Config.Get().GetMetadata().GetAttempt() }

// container returns the record of a container.
func (p *pod) container(id string) *sandbox.Container { return p.of[id].Container(sandbox.ID(id)) }

// restarts is how often in a row a container has started by itself. One that has run for long begins anew.
func restarts(c *sandbox.Container) int {
	if c.State == sandbox.Exited && c.Ran() >= steadyAfter {
		return 0
	}
	return annotation.Restarts(c.Config.Get().GetAnnotations())
}

// due says when something of the pod is to be started next, and what is then; the time is zero when nothing is. In a
// pod that is not ready all is started at once that starts again, since its sandbox goes with what is left in it.
func (p *pod) due() (at time.Time, wanted map[string]bool) {
	r := p.newest
	if r == nil || r.StopAsked || r.State != sandbox.Ready && r.State != sandbox.Stopped {
		return time.Time{}, nil
	}
	due := map[string]time.Time{}
	for _, last := range attempt.Last(p.known.Containers) {
		c, n := p.container(last.ID), 0
		switch n = restarts(c); {
		case p.of[last.ID].StartsAgain(c, n):
			due[last.ID] = c.FinishedAt.Add(delay(n))
			if c.FinishedAt.After(time.Now()) { // the clock was set back
				due[last.ID] = time.Now()
			}
		case n > 0 && begun(c): // the last daemon made it and did not live to start it, or to see it started
			due[last.ID] = c.CreatedAt
			if c.CreatedAt.After(time.Now()) { // the clock was set back
				due[last.ID] = time.Now()
			}
		default:
			continue
		}
		if at.IsZero() || due[last.ID].Before(at) {
			at = due[last.ID]
		}
	}
	wanted = map[string]bool{}
	for id, t := range due {
		wanted[id] = !p.known.Ready || !t.After(time.Now())
	}
	return at, wanted
}

// begun reports whether a container was made, and perhaps let go, and nobody has stopped it since.
func begun(c *sandbox.Container) bool {
	return !c.StopAsked && (c.State == sandbox.Created || c.State == sandbox.Starting)
}

// errOvertaken says that what was about to start again has been stopped or removed.
var errOvertaken = errors.New("it was stopped meanwhile")

// start starts what is due of a pod.
func (k *Keeper) start(ctx context.Context, p *pod, wanted map[string]bool) error {
	var all []attempt.Started
	err := op.InTurn(ctx, k.slots, slotTime, func(ctx context.Context) (err error) {
		all, err = attempt.Start(ctx, &runtime{k.Pods, k.Catalog, &k.ports, k.logs, p}, p.known,
			func(c attempt.Container) bool { return wanted[c.ID] })
		return err
	})
	for _, c := range all {
		k.Log.Info("a container of berth run has ended, and was started again", "pod", nameOf(p.newest).name,
			"name", c.Name, "container", c.ID)
	}
	if errors.Is(err, errOvertaken) {
		k.Log.Info("a container of berth run does not start again", "pod", p.newest.ID, "reason", err)
		return nil
	}
	return err
}

// runtime makes attempts of a pod.
type runtime struct {
	pods    Pods
	catalog Catalog
	ports   *ports
	logs    *look.Disk
	pod     *pod
}

// RunPod makes the next sandbox. Where the last one has been stopped or removed meanwhile, that holds for the pod.
func (a *runtime) RunPod(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	release, err := a.ports.hold(a.catalog, nameOf(a.pod.newest), cfg.GetPortMappings())
	if err != nil {
		return "", err
	}
	defer release()
	id, err := a.pods.Run(ctx, cfg, handler)
	if err != nil {
		return "", err
	}
	if r, err := a.catalog.Get(a.pod.newest.ID); err != nil || r.StopAsked || r.State == sandbox.Removing {
		return "", errors.Join(errOvertaken, a.pods.Remove(ctx, id))
	}
	return string(id), nil
}

// Create makes the next attempt of a container, and notes how often that was.
func (a *runtime) Create(
	ctx context.Context, pod string, cfg *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig,
) (string, error) {
	before := a.before(cfg.GetMetadata())
	cfg.Annotations = maps.Clone(cfg.Annotations)
	cfg.Annotations[annotation.KeyRestarts] = strconv.Itoa(restarts(before) + 1)
	id, err := a.pods.Create(ctx, sandbox.ID(pod), cfg)
	if err != nil {
		return "", err
	}
	r, err := a.catalog.Get(a.pod.of[string(before.ID)].ID)
	if err != nil {
		return "", errors.Join(errOvertaken, a.pods.RemoveContainer(ctx, id))
	}
	if c := r.Container(before.ID); r.StopAsked || c == nil || c.StopAsked || c.State == sandbox.Removing {
		return "", errors.Join(errOvertaken, a.pods.RemoveContainer(ctx, id))
	}
	return string(id), nil
}

// before is the attempt before the one that m names.
func (a *runtime) before(m *runtimeapi.ContainerMetadata) *sandbox.Container {
	for _, c := range a.pod.known.Containers {
		if c.Name() == m.GetName() && c.Config.GetMetadata().GetAttempt()+1 == m.GetAttempt() {
			return a.pod.container(c.ID)
		}
	}
	return &sandbox.Container{}
}

func (a *runtime) Start(ctx context.Context, container string) error {
	return a.pods.Start(ctx, sandbox.ID(container))
}

func (a *runtime) RemovePod(ctx context.Context, id string) error {
	return a.pods.Remove(ctx, sandbox.ID(id))
}

// RemoveContainer removes a container with its log, to which nothing leads any more.
func (a *runtime) RemoveContainer(ctx context.Context, id string) error {
	if err := a.pods.RemoveContainer(ctx, sandbox.ID(id)); err != nil {
		return err
	}
	dir, log := a.pod.of[id].Config.Get().GetLogDirectory(), a.pod.container(id).Config.Get().GetLogPath()
	if dir == "" || !filepath.IsLocal(log) {
		return nil
	}
	err := onDisk(ctx, a.logs, func() error { return os.Remove(filepath.Join(dir, log)) })
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the log of container %s: %w", id, err)
	}
	return nil
}
