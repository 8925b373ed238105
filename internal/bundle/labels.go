package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/limit"
	"berth/internal/look"
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

// Labels gives pods and containers their SELinux labels.
type Labels struct {
	// SELinux returns what gives labels now; nil while containers get none. Once there is one it stays. A nil function is
	// that of a node without.
	SELinux func() SELinux
	// Categories is how many there are, of which each pod gets two; 0 is as many as every policy has.
	Categories int
}

// node is what gives labels now, or nil.
func (l Labels) node() SELinux {
	if l.SELinux == nil {
		return nil
	}
	return l.SELinux()
}

// check refuses options of SELinux that no pod or container can have on this node; of a container they stand in
// for parts of the pod's labels.
func (l Labels) check(pod spec.Labels, o *runtimeapi.SELinuxOption) error {
	if err := spec.CheckSELinux(o); err != nil {
		return err
	}
	want := pod.With(o)
	if o == nil || want == (spec.Labels{}) {
		return nil
	}
	node := l.node()
	if node == nil {
		return nil
	}
	for _, label := range []string{want.Process, want.Mount} {
		if err := node.Check(label); err != nil {
			return fmt.Errorf("selinux_options: %w", err)
		}
	}
	return nil
}

// CheckContainer refuses a container that cannot have the labels that it asks for. One of a pod that has labels does
// not run without.
func (l Labels) CheckContainer(pod spec.Labels, o *runtimeapi.SELinuxOption) error {
	if pod != (spec.Labels{}) && l.node() == nil {
		return fail.New(errdefs.ErrFailedPrecondition,
			"the pod was made with the SELinux label %s, and the daemon runs without SELinux since it was "+
				"restarted: start it with SELinux again, or remove the pod", pod.Process)
	}
	return l.check(pod, o)
}

// usual are those of a pod that asks for none, without categories; none where pods have no labels.
func (l Labels) usual() spec.Labels {
	node := l.node()
	if node == nil {
		return spec.Labels{}
	}
	process, file := node.Usual()
	return spec.Labels{Process: process, Mount: file}
}

// New are the labels of a new pod. One that names no level gets two categories that are in no level of taken,
// which is called only then.
func (l Labels) New(cfg *runtimeapi.PodSandboxConfig, taken func() map[string]bool) (spec.Labels, error) {
	o := cfg.GetLinux().GetSecurityContext().GetSelinuxOptions()
	of := l.usual().With(o)
	if of.Level() == "" || o.GetLevel() != "" {
		return of, nil
	}
	categories, others := cmp.Or(l.Categories, allCategories), taken()
	for range 1000 {
		if level := randomLevel(of.Level(), categories); !others[level] {
			return of.With(&runtimeapi.SELinuxOption{Level: level}), nil
		}
	}
	pairs := int64(categories) * int64(categories-1) / 2
	return of, sandbox.InPod(cfg.Metadata, limit.SELinuxLevels.At(pairs).Exceeded())
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
func (l Labels) label(r *sandbox.Record, paths ...string) error {
	if r.SELinux.Mount == "" {
		return nil
	}
	node := l.node()
	if node == nil {
		return nil
	}
	for _, path := range paths {
		if err := node.Label(path, r.SELinux.Mount); err != nil {
			return err
		}
	}
	return nil
}

// of are those of a container of the pod; none where pods have none.
func (l Labels) of(r *sandbox.Record, ctr *sandbox.Container) spec.Labels {
	if r.SELinux == (spec.Labels{}) || l.node() == nil {
		return spec.Labels{}
	}
	return spec.ContainerLabels(r.SELinux, ctr.Config.Get())
}

// relabel labels the volumes of a container for which the caller asks for it; a kubelet does not for those that it has
// mounted with their label. A container that may use all files leaves the labels to others.
func (l Labels) relabel(
	ctx context.Context, r *sandbox.Record, c *sandbox.Container, mounts []spec.ResolvedMount, disks *look.Disks,
) error {
	of := l.of(r, c)
	if of.Mount == "" || of.Superuser() {
		return nil
	}
	node := l.node() // there is one: of has labels
	for _, m := range mounts {
		if !m.Mount.SelinuxRelabel || m.Mount.Image != nil {
			continue
		}
		_, err := look.WithinAt(ctx, disks, m.Source, func() (struct{}, error) {
			return struct{}{}, node.Relabel(ctx, m.Source, of.Mount)
		})
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
