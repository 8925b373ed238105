package sandbox

import (
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
)

// CheckRestart refuses an unknown restart policy.
func CheckRestart(cfg *runtimeapi.ContainerConfig) error {
	if _, err := annotation.RestartPolicy(cfg.GetAnnotations()); err != nil {
		return err
	}
	_, err := annotation.Remove(cfg.GetAnnotations())
	return err
}

// Removal says when a container of the pod is removed that has ended.
func (r *Record) Removal(c *Container) annotation.Removal {
	return Removal(r.Config.Get().GetLabels(), c.Config.Get().GetAnnotations())
}

// Removal says so by the labels of the pod and the annotations of the container. Only those of berth run are removed.
func Removal(pod, container map[string]string) annotation.Removal {
	when, err := annotation.Remove(container)
	if err != nil || !ByHand(pod) {
		return annotation.Stays
	}
	return when
}

// RestartPolicy says when a container of the pod starts again by itself. Only those of berth run do: a kubelet starts
// its own.
func (r *Record) RestartPolicy(c *Container) annotation.Restart {
	if !r.ByHand() {
		return annotation.Restart{When: annotation.Never}
	}
	p, err := annotation.RestartPolicy(c.Config.Get().GetAnnotations())
	if err != nil { // of a record that another release wrote
		return annotation.Restart{When: annotation.Never}
	}
	return p
}

// StopIsOver has what a client stopped start again where its policy says Always: the machine has restarted. With the
// pod comes no other container that was stopped.
func (r *Record) StopIsOver() error {
	if !r.ByHand() {
		return nil // nothing is noted there
	}
	all, pod := r.Containers, r.StopAsked
	r.StopAsked = false
	for _, c := range all {
		err := r.Edit(c.ID, func(c *Container) error {
			c.StopAsked = (c.StopAsked || pod) && r.RestartPolicy(c).When != annotation.Always
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// StartsAgain reports whether a container that has ended starts again by itself. restarts is how often in a row it has
// done so.
func (r *Record) StartsAgain(c *Container, restarts int) bool {
	if r.StopAsked || c.StopAsked || c.State != Exited {
		return false
	}
	switch p := r.RestartPolicy(c); p.When {
	case annotation.Always, annotation.UnlessStopped:
		return true
	case annotation.OnFailure:
		return c.ExitCode != 0 && (p.Most == 0 || restarts < p.Most)
	default:
		return false
	}
}

// Ran is how long a container that has ended ran; 0 when it never did.
func (c *Container) Ran() time.Duration {
	if c.StartedAt.IsZero() || c.FinishedAt.Before(c.StartedAt) {
		return 0
	}
	return c.FinishedAt.Sub(c.StartedAt)
}
