package restart

import (
	"maps"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/sandbox"
)

// ports are the ports of the machine that the keeper's pods take while they are started, when no list shows them yet.
type ports struct {
	mu   sync.Mutex // guards held; the catalog is read below it
	held map[name][]*runtimeapi.PortMapping
}

// hold refuses ports that lead to another pod, which is ready or being started: CNI plugins take them all the same, and
// one of the two pods is reached no more. The ports are this pod's until release, which is called when it is ready or
// not made.
func (s *ports) hold(all Catalog, of name, wanted []*runtimeapi.PortMapping) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	others := map[name][]*runtimeapi.PortMapping{}
	maps.Copy(others, s.held)
	for _, r := range all.List() { // after mu is locked: what is held no more is listed
		if r.State == sandbox.Ready {
			others[nameOf(r)] = slices.Concat(others[nameOf(r)], r.Config.Get().GetPortMappings())
		}
	}
	delete(others, of)
	for _, w := range wanted {
		if pod := whoHas(w, others); pod != "" {
			return nil, fail.New(errdefs.ErrFailedPrecondition, "port %s of this machine leads to pod %s already",
				sandbox.PortText(w), pod)
		}
	}
	if s.held == nil {
		s.held = map[name][]*runtimeapi.PortMapping{}
	}
	s.held[of] = wanted
	return func() { s.release(of) }, nil
}

func (s *ports) release(of name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, of)
}

// whoHas is the pod that has a port of the machine, the first by name so that the answer stays the same, or "".
func whoHas(port *runtimeapi.PortMapping, all map[name][]*runtimeapi.PortMapping) (pod string) {
	for of, mappings := range all {
		for _, m := range mappings {
			same := port.GetHostPort() != 0 && sandbox.SamePort(port, m)
			if same && (pod == "" || of.name < pod) {
				pod = of.name
			}
		}
	}
	return pod
}
