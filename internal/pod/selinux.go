package pod

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/limit"
	"berth/internal/sandbox"
	"berth/internal/selinux"
	"berth/internal/spec"
)

// SELinux is that of the node. All may be repeated.
type SELinux interface {
	// Usual returns the labels of processes and of files of containers that ask for no others, without categories.
	Usual() (process, file string)
	// Check refuses a label that the node's policy does not allow.
	Check(label string) error
	// Label labels one file or directory, and nothing below it.
	Label(path, label string) error
	// Relabel labels what is at path, a host path without links, and all below it. It is a *selinux.ProtectedError that
	// nobody may.
	Relabel(ctx context.Context, path, label string) error
}

// checkLabels refuses options of SELinux that no pod or container can have on this node; of a container they stand in
// for parts of the pod's labels.
func (c *Config) checkLabels(pod spec.Labels, o *runtimeapi.SELinuxOption) error {
	if err := spec.CheckSELinux(o); err != nil {
		return err
	}
	l := pod.With(o)
	if c.SELinux == nil || o == nil || l == (spec.Labels{}) {
		return nil
	}
	for _, label := range []string{l.Process, l.Mount} {
		if err := c.SELinux.Check(label); err != nil {
			return fmt.Errorf("selinux_options: %w", err)
		}
	}
	return nil
}

// checkContainerLabels is checkLabels for a container. One of a pod that has labels does not run without.
func (c *Config) checkContainerLabels(pod spec.Labels, o *runtimeapi.SELinuxOption) error {
	if c.SELinux == nil && pod != (spec.Labels{}) {
		return fail.New(errdefs.ErrFailedPrecondition,
			"the pod was made with the SELinux label %s, and the daemon runs without SELinux since it was "+
				"restarted: start it with SELinux again, or remove the pod", pod.Process)
	}
	return c.checkLabels(pod, o)
}

// usualLabels are those of a pod that asks for none, without categories; none where pods have no labels.
func (c *Config) usualLabels() spec.Labels {
	if c.SELinux == nil {
		return spec.Labels{}
	}
	process, file := c.SELinux.Usual()
	return spec.Labels{Process: process, Mount: file}
}

// newLabels are the labels of a new pod. One that names no level gets two categories that no other pod has: the records
// say who has which, so they are free again when the pod is gone, and not before. The catalog is locked.
func newLabels(s *Pods, cfg *runtimeapi.PodSandboxConfig) (spec.Labels, error) {
	o := cfg.GetLinux().GetSecurityContext().GetSelinuxOptions()
	l := s.cfg.usualLabels().With(o)
	if l.Level() == "" || o.GetLevel() != "" {
		return l, nil
	}
	taken := s.levels()
	for range 1000 {
		if level := randomLevel(l.Level(), s.categories); !taken[level] {
			return l.With(&runtimeapi.SELinuxOption{Level: level}), nil
		}
	}
	pairs := int64(s.categories) * int64(s.categories-1) / 2
	return l, sandbox.InPod(cfg.Metadata, limit.SELinuxLevels.At(pairs).Exceeded())
}

// levels are those that pods have, or containers that name one of their own.
func (c *catalog) levels() map[string]bool {
	taken := map[string]bool{}
	for _, p := range c.index.Load().pods {
		r := p.rec.Load()
		taken[r.SELinux.Level()] = true
		for _, ctr := range r.Containers {
			taken[spec.ContainerLabels(r.SELinux, ctr.Config.Get()).Level()] = true
		}
	}
	return taken
}

// allCategories is how many there are in every policy that has any.
const allCategories = 1024

// randomLevel is this sensitivity with two categories: one alone is shared too often, and more tell no more pods apart
// than there are. The last two are for files that no container may use, as other runtimes have it.
func randomLevel(base string, categories int) string {
	sensitivity, _, _ := strings.Cut(base, ":")
	a := rand.IntN(categories - 2)
	b := rand.IntN(categories - 3)
	if b >= a {
		b++
	}
	return fmt.Sprintf("%s:c%d,c%d", sensitivity, min(a, b), max(a, b))
}

// label labels files of the pod, where it has labels.
func (c *Config) label(r *sandbox.Record, paths ...string) error {
	if c.SELinux == nil || r.SELinux.Mount == "" {
		return nil
	}
	for _, path := range paths {
		if err := c.SELinux.Label(path, r.SELinux.Mount); err != nil {
			return err
		}
	}
	return nil
}

// labels are those of a container of the pod; none where pods have none.
func (c *Config) labels(r *sandbox.Record, ctr *sandbox.Container) spec.Labels {
	if c.SELinux == nil {
		return spec.Labels{}
	}
	return spec.ContainerLabels(r.SELinux, ctr.Config.Get())
}

// relabel labels the volumes of a container for which the caller asks for it; a kubelet does not for those that it has
// mounted with their label. A container that may use all files leaves the labels to others.
func (b *building) relabel(
	ctx context.Context, r *sandbox.Record, c *sandbox.Container, mounts []spec.ResolvedMount,
) error {
	l := b.cfg.labels(r, c)
	if l.Mount == "" || l.Superuser() {
		return nil
	}
	for _, m := range mounts {
		if !m.Mount.SelinuxRelabel || m.Mount.Image != nil {
			continue
		}
		err := b.cfg.SELinux.Relabel(ctx, m.Source, l.Mount)
		var no *selinux.ProtectedError
		switch {
		case errors.As(err, &no):
			return fail.New(errdefs.ErrInvalidArgument, "mount of %s: %w", m.Mount.ContainerPath, err)
		case errdefs.IsCanceled(err) || errdefs.IsDeadlineExceeded(err):
			return fmt.Errorf("mount of %s: %w", m.Mount.ContainerPath, err)
		case err != nil:
			return fail.New(errdefs.ErrInternal, "mount of %s: %w", m.Mount.ContainerPath, err)
		}
	}
	return nil
}
