package pod

import (
	"iter"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// attempts are the sandboxes of one pod, in no order.
func (x *index) attempts(m *runtimeapi.PodSandboxMetadata) iter.Seq[*pod] {
	return func(yield func(*pod) bool) {
		for _, p := range x.pods {
			of := p.record().Config.Get().GetMetadata()
			if of.GetUid() == m.GetUid() && of.GetName() == m.GetName() && of.GetNamespace() == m.GetNamespace() && !yield(p) {
				return
			}
		}
	}
}

// created is when the next sandbox of a pod, or the next container of that name in one of them, comes to be: now, but
// after every earlier one that is still there. A kubelet takes for the last attempt what was created last, and kills a
// sandbox that is not the last, so a clock that was set back must not make a new one older.
func (x *index) created(pod *runtimeapi.PodSandboxMetadata, container string) time.Time {
	at := time.Now()
	for p := range x.attempts(pod) {
		r := p.record()
		if container == "" {
			at = laterThan(r.CreatedAt, at)
			continue
		}
		for _, c := range r.Containers {
			if c.Config.Get().GetMetadata().GetName() == container {
				at = laterThan(c.CreatedAt, at)
			}
		}
	}
	return at
}

// laterThan returns at, or the moment after earlier where at is not later. It compares wall clocks, as a client does:
// the monotonic readings of this daemon's own times do not show that the clock was set back.
func laterThan(earlier, at time.Time) time.Time {
	earlier = earlier.Round(0)
	if at.Round(0).After(earlier) {
		return at
	}
	return earlier.Add(time.Nanosecond)
}
