package pod

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// Catalog finds pods and containers. Reading it never waits.
type Catalog struct {
	mu    sync.Mutex // guards the publication of index
	index atomic.Pointer[index]
}

// index finds pods. A published index is never changed.
type index struct {
	pods       map[sandbox.ID]*pod
	names      map[string]*pod // by the name that kubelets retry with
	containers map[sandbox.ID]*pod
	damaged    map[sandbox.ID]damaged // by the id whose record cannot be read: nothing named after it is swept
}

func (x *index) clone() *index {
	return &index{maps.Clone(x.pods), maps.Clone(x.names), maps.Clone(x.containers), maps.Clone(x.damaged)}
}

// reindex publishes a changed index.
func (c *Catalog) reindex(fn func(*index)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reindexLocked(fn)
}

func (c *Catalog) reindexLocked(fn func(*index)) {
	next := c.index.Load().clone()
	fn(next)
	c.index.Store(next)
}

// forget removes a pod whose record is gone.
func (x *index) forget(p *pod) {
	delete(x.pods, p.id)
	maps.DeleteFunc(x.names, func(_ string, q *pod) bool { return q == p })
	maps.DeleteFunc(x.containers, func(_ sandbox.ID, q *pod) bool { return q == p })
}

// release lets a new pod have the name of p.
func (x *index) release(p *pod) {
	key := nameKey(p.record().Config.Get().GetMetadata())
	if x.names[key] == p {
		delete(x.names, key)
	}
}

// claim returns the pod that has the name of m, a new one when none has.
func (c *Catalog) claim(m *runtimeapi.PodSandboxMetadata, newPod func() (*pod, error)) (*pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := nameKey(m)
	if p := c.index.Load().names[key]; p != nil {
		return p, nil
	}
	if err := c.index.Load().checkDamaged(m); err != nil {
		return nil, err
	}
	p, err := newPod()
	if err != nil {
		return nil, err
	}
	c.reindexLocked(func(x *index) { x.pods[p.id], x.names[key] = p, p })
	return p, nil
}

// nameKey is the name by which a kubelet's retries are recognized.
func nameKey(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s\x00%s\x00%s\x00%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

// find returns the pod with that id, for changing it.
func (c *Catalog) find(id sandbox.ID) (*pod, error) {
	if p := c.index.Load().pods[id]; p != nil {
		return p, nil
	}
	return nil, sandbox.NotFound("pod sandbox", id)
}

// known are all pods with a record, or with something in its place.
func (x *index) known() map[sandbox.ID]*pod {
	if len(x.damaged) == 0 {
		return x.pods
	}
	all := maps.Clone(x.pods)
	for id, d := range x.damaged {
		if d.pod != nil {
			all[id] = d.pod
		}
	}
	return all
}

// findContainer returns the container's pod.
func (c *Catalog) findContainer(id sandbox.ID) (*pod, *sandbox.Container, error) {
	p := c.index.Load().containers[id]
	if p == nil {
		return nil, nil, sandbox.NotFound("container", id)
	}
	ctr := p.record().Container(id)
	if ctr == nil {
		return nil, nil, sandbox.NotFound("container", id)
	}
	return p, ctr, nil
}

// adopted returns a container once it is known what lives of it.
func (c *Catalog) adopted(ctx context.Context, id sandbox.ID) (*container, error) {
	p, _, err := c.findContainer(id)
	if err != nil {
		return nil, err
	}
	if err := p.waitAdopted(ctx); err != nil {
		return nil, err
	}
	if l := p.containers.get(id); l != nil {
		return l, nil
	}
	return nil, sandbox.NotFound("container", id)
}

// Get returns what is known of a pod. It never waits.
func (c *Catalog) Get(id sandbox.ID) (*sandbox.Record, error) {
	if p := c.index.Load().known()[id]; p != nil {
		if r := p.record(); r.Listed() {
			return r, nil
		}
	}
	return nil, sandbox.NotFound("pod sandbox", id)
}

// GetContainer returns what is known of a container and of its pod. It never waits.
func (c *Catalog) GetContainer(id sandbox.ID) (*sandbox.Record, *sandbox.Container, error) {
	p, ctr, err := c.findContainer(id)
	if err != nil {
		return nil, nil, err
	}
	if !ctr.Listed() {
		return nil, nil, sandbox.NotFound("container", id)
	}
	return p.record(), ctr, nil
}

// List returns what is known of every pod that a kubelet may see. It never waits.
func (c *Catalog) List() []*sandbox.Record {
	pods := c.index.Load().known()
	all := make([]*sandbox.Record, 0, len(pods))
	for _, p := range pods {
		if r := p.record(); r.Listed() {
			all = append(all, r)
		}
	}
	return all
}

// Layers returns the ids of the image layers that containers use. The list is not whole if there is a pod whose layers
// are unknown: it may use any that was there before this daemon.
func (c *Catalog) Layers() (used map[string]struct{}, whole bool) {
	used, whole = map[string]struct{}{}, true
	x := c.index.Load()
	for _, d := range x.damaged {
		if d.identity == nil {
			whole = false
			continue
		}
		for _, l := range d.identity.Layers {
			used[l] = struct{}{}
		}
	}
	for _, p := range x.pods {
		for _, ctr := range p.record().Containers {
			for _, l := range ctr.Layers {
				used[l] = struct{}{}
			}
		}
	}
	return used, whole
}

// ImageUsers returns the ids of the containers that run or mount each image, by the image's id.
func (c *Catalog) ImageUsers() map[string][]sandbox.ID {
	users := map[string][]sandbox.ID{}
	for r := range records(c) {
		for _, ctr := range r.Containers {
			of := map[string]bool{ctr.Image: true}
			for _, v := range ctr.Volumes {
				of[v.Image] = true
			}
			for image := range of {
				users[image] = append(users[image], ctr.ID)
			}
		}
	}
	return users
}

// ID returns the id of the pod that s names: an id, or the beginning of one that only one pod has.
func (c *Catalog) ID(name string) (sandbox.ID, error) {
	x := c.index.Load()
	if _, ok := x.damaged[sandbox.ID(name)]; ok {
		return sandbox.ID(name), nil
	}
	return resolve("pod sandbox", name, x.known())
}

// ContainerID returns the id of the container that s names: an id, or the beginning of one that only one container has.
func (c *Catalog) ContainerID(name string) (sandbox.ID, error) {
	return resolve("container", name, c.index.Load().containers)
}

func resolve(what, name string, all map[sandbox.ID]*pod) (sandbox.ID, error) {
	if _, ok := all[sandbox.ID(name)]; ok {
		return sandbox.ID(name), nil
	}
	var found []sandbox.ID
	if len(name) > 0 && len(name) < 64 {
		for id := range all {
			if strings.HasPrefix(string(id), name) {
				found = append(found, id)
			}
		}
	}
	switch len(found) {
	case 0:
		return "", sandbox.NotFound(what, sandbox.ID(name))
	case 1:
		return found[0], nil
	}
	return "", fail.New(errdefs.ErrInvalidArgument, "%s %q: %d ids begin so; give more digits", what, name, len(found))
}

// owned reports whether a record owns that id, also one that cannot be read.
func (c *Catalog) owned(id string) bool {
	x := c.index.Load()
	_, damaged := x.damaged[sandbox.ID(id)]
	return damaged || x.pods[sandbox.ID(id)] != nil
}

// records gives those of all pods that have one, also of those that are not listed yet, each as it is when it is its
// turn.
func records(c *Catalog) iter.Seq[*sandbox.Record] {
	return func(yield func(*sandbox.Record) bool) {
		for _, p := range c.index.Load().pods {
			if !yield(p.record()) {
				return
			}
		}
	}
}

// levels are the SELinux levels of pods, and of containers with a level of their own. A level is free again only when
// the pod is gone.
func (c *Catalog) levels() map[string]bool {
	taken := map[string]bool{}
	for _, p := range c.index.Load().pods {
		r := p.record()
		taken[r.SELinux.Level()] = true
		for _, ctr := range r.Containers {
			taken[spec.ContainerLabels(r.SELinux, ctr.Config.Get()).Level()] = true
		}
	}
	return taken
}
