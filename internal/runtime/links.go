package runtime

import (
	"context"
	"sync"
)

// links has the link of each pod.
type links struct {
	cfg     *Config
	changes *replacements

	mu   sync.Mutex // guards pods
	pods map[string]*link
}

// get returns the link of a pod, which it makes if there is none.
func (all *links) get(pod string) *link {
	all.mu.Lock()
	defer all.mu.Unlock()
	l := all.pods[pod]
	if l == nil {
		l = newLink(all.cfg, pod, all.changes)
		all.pods[pod] = l
	}
	return l
}

// remove removes the link of a pod and returns it.
func (all *links) remove(pod string) *link {
	all.mu.Lock()
	defer all.mu.Unlock()
	l := all.pods[pod]
	delete(all.pods, pod)
	if l == nil {
		l = newLink(all.cfg, pod, all.changes)
	}
	return l
}

// known returns the link of a pod, nil if there is none, as for a pod that was removed.
func (all *links) known(pod string) *link {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.pods[pod]
}

// list returns all links.
func (all *links) list() []*link {
	all.mu.Lock()
	defer all.mu.Unlock()
	list := make([]*link, 0, len(all.pods))
	for _, l := range all.pods {
		list = append(list, l)
	}
	return list
}

// monitor returns the connection to a pod's monitor. While another one takes over it waits, as long as a quick call
// may.
func (all *links) monitor(ctx context.Context, pod string) (*client, error) {
	if l := all.known(pod); l != nil {
		if c := l.await(ctx); c != nil {
			return c, nil
		}
	}
	return nil, errNoMonitor
}
