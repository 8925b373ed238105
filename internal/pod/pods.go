package pod

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image"
	"berth/internal/network"
	"berth/internal/op"
	"berth/internal/runtime"
	"berth/internal/spec"
)

// Runtime is what a pod needs of a driver: processes under the pod's monitor. Every call may be repeated, and Delete and
// Shutdown succeed when there is nothing.
type Runtime interface {
	Launch(ctx context.Context, pod string) error
	Adopt(ctx context.Context, pod string) (runtime.Inventory, error)
	Create(ctx context.Context, pod string, c runtime.Create) (runtime.Process, error)
	Start(ctx context.Context, pod, ctr string, log runtime.Log) error
	Signal(ctx context.Context, pod, ctr string, sig int) error
	KillAll(ctx context.Context, pod, ctr string) error
	Delete(ctx context.Context, pod, ctr string, h runtime.Handler) error
	Exec(ctx context.Context, pod, ctr string, e runtime.Exec) (runtime.ExecResult, error)
	Attach(ctx context.Context, pod, ctr string, a runtime.Attach) error
	Resize(ctx context.Context, pod, ctr string, width, height uint16) error
	ReopenLog(ctx context.Context, pod, ctr string, log runtime.Log) error
	Shutdown(ctx context.Context, pod string) error
	Sweep(ctx context.Context, live func(pod string) bool) error
}

// Network attaches pods to networks. Detach may be repeated and succeeds when nothing is attached.
type Network interface {
	Attach(ctx context.Context, p network.Pod) (network.Result, error)
	Detach(ctx context.Context, p network.Pod) error
	Attachments() ([]string, error)
}

// Images gives the images that containers are made from.
type Images interface {
	// Use returns an image and keeps its layers from being swept until release is called.
	Use(ref string) (img image.Image, release func(), err error)
	LayerDirs(img image.Image) []string
}

// Config is what Pods is made of. All fields are required but those with a default.
type Config struct {
	Layout
	Boot     string // the boot id: what was made in another boot is gone
	Host     spec.Host
	Init     string // the path of the monitor binary, whose init mode is a pod's init
	Runtime  Runtime
	Network  Network
	Images   Images
	Handlers func(name string) (runtime.Handler, error) // "" is the default; NotFound for what is not configured
	// HandlerSpec is what the configuration says of a handler's containers.
	HandlerSpec func(name string) spec.Handler
	PidsLimit   int64 // processes of a container that asks for no limit; 0 is none
	// CgroupTree removes what is left of a cgroup that Berth itself named.
	CgroupTree func(path string) error
	// CgroupChildren lists the cgroups directly below one, in whichever hierarchies.
	CgroupChildren func(path string) ([]string, error)
	Dirty          func(path string) // tells the flusher
	Log            *slog.Logger

	Abandon       time.Duration // a create that nobody waits for is undone after it; two minutes
	CreateTimeout time.Duration // of the OCI runtime's create and start; two minutes
	Retry         op.Backoff    // between tries of an undo that fails; 1 s to 1 min
}

// Pods holds every pod of the node.
type Pods struct {
	cfg    Config
	ctx    context.Context // the daemon's: all work derives from it
	cancel context.CancelFunc
	work   sync.WaitGroup // what goes on in the background

	mu    sync.Mutex // guards the publication of index
	index atomic.Pointer[index]
	usage usageReading
}

// Problem is something that a person should look at: a record that cannot be read, an undo that does not succeed.
type Problem struct {
	Pod   ID
	What  string
	Since time.Time
}

// index finds pods. A published index is never changed.
type index struct {
	pods       map[ID]*pod
	names      map[string]*pod // by the name that kubelets retry with
	containers map[ID]*pod
	damaged    map[ID]error // ids whose record cannot be read: nothing named after them is swept
}

func (x *index) clone() *index {
	return &index{maps.Clone(x.pods), maps.Clone(x.names), maps.Clone(x.containers), maps.Clone(x.damaged)}
}

// reindex publishes a changed index.
func (s *Pods) reindex(fn func(*index)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reindexLocked(fn)
}

func (s *Pods) reindexLocked(fn func(*index)) {
	next := s.index.Load().clone()
	fn(next)
	s.index.Store(next)
}

// Close ends the daemon's part: what is under way is cut off, as by a crash, and the pods run on.
func (s *Pods) Close() {
	s.cancel()
	s.work.Wait()
}

// background runs fn, unless the daemon is ending.
func (s *Pods) background(fn func(context.Context)) {
	s.work.Go(func() {
		if s.ctx.Err() == nil {
			fn(s.ctx)
		}
	})
}

// nameKey is what a kubelet's retries have in common.
func nameKey(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s\x00%s\x00%s\x00%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

func notFound(what string, id ID) error {
	return fmt.Errorf("%s %q: %w", what, string(id), errdefs.ErrNotFound)
}

// find returns the pod with that id, for changing it.
func (s *Pods) find(id ID) (*pod, error) {
	if p := s.index.Load().pods[id]; p != nil {
		return p, nil
	}
	return nil, notFound("pod sandbox", id)
}

// findContainer returns the container's pod.
func (s *Pods) findContainer(id ID) (*pod, *Container, error) {
	p := s.index.Load().containers[id]
	if p == nil {
		return nil, nil, notFound("container", id)
	}
	c := p.rec.Load().container(id)
	if c == nil {
		return nil, nil, notFound("container", id)
	}
	return p, c, nil
}

// Get returns what is known of a pod. It never waits.
func (s *Pods) Get(id ID) (*Record, error) {
	p, err := s.find(id)
	if err != nil {
		return nil, err
	}
	if r := p.rec.Load(); r.listed() {
		return r, nil
	}
	return nil, notFound("pod sandbox", id)
}

// GetContainer returns what is known of a container and of its pod. It never waits.
func (s *Pods) GetContainer(id ID) (*Record, *Container, error) {
	p, c, err := s.findContainer(id)
	if err != nil {
		return nil, nil, err
	}
	if c.State == Creating {
		return nil, nil, notFound("container", id)
	}
	return p.rec.Load(), c, nil
}

// List returns what is known of every pod that a kubelet may see. It never waits.
func (s *Pods) List() []*Record {
	x := s.index.Load()
	all := make([]*Record, 0, len(x.pods))
	for _, p := range x.pods {
		if r := p.rec.Load(); r.listed() {
			all = append(all, r)
		}
	}
	return all
}

// listed says whether a kubelet may see the pod: one being created is not there yet, one whose undo is stuck is there
// still.
func (r *Record) listed() bool { return r.State != Creating && (r.State != Removing || r.Stuck != nil) }

// Layers returns the ids of the image layers that containers use.
func (s *Pods) Layers() map[string]struct{} {
	used := map[string]struct{}{}
	for _, p := range s.index.Load().pods {
		for _, c := range p.rec.Load().Containers {
			for _, l := range c.Layers {
				used[l] = struct{}{}
			}
		}
	}
	return used
}

// Problems returns what a person should look at. It never waits.
func (s *Pods) Problems() []Problem {
	x := s.index.Load()
	var all []Problem
	for id, err := range x.damaged {
		all = append(all, Problem{Pod: id, What: err.Error()})
	}
	for id, p := range x.pods {
		r := p.rec.Load()
		if r.Stuck != nil {
			all = append(all, Problem{id, r.Stuck.Error, r.Stuck.Since})
		}
		for _, c := range r.Containers {
			if c.Stuck != nil {
				all = append(all, Problem{id, c.Stuck.Error, c.Stuck.Since})
			}
		}
	}
	return all
}

// ID returns the id of the pod that s names: an id, or the beginning of one that only one pod has.
func (s *Pods) ID(name string) (ID, error) {
	return resolve("pod sandbox", name, s.index.Load().pods)
}

// ContainerID returns the id of the container that s names: an id, or the beginning of one that only one container has.
func (s *Pods) ContainerID(name string) (ID, error) {
	return resolve("container", name, s.index.Load().containers)
}

func resolve(what, name string, all map[ID]*pod) (ID, error) {
	if _, ok := all[ID(name)]; ok {
		return ID(name), nil
	}
	var found []ID
	if len(name) > 0 && len(name) < 64 {
		for id := range all {
			if strings.HasPrefix(string(id), name) {
				found = append(found, id)
			}
		}
	}
	switch len(found) {
	case 0:
		return "", notFound(what, ID(name))
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%s %q: %d ids begin so; give more digits: %w", what, name, len(found), errdefs.ErrInvalidArgument)
}

// Paths names the places on the host that belong to a pod, for people.
func (s *Pods) Paths(r *Record) map[string]string {
	l := &s.cfg.Layout
	m := map[string]string{"record": l.record(r.ID), "run": l.run(r.ID), "ipc": l.ipcns(r.ID), "uts": l.utsns(r.ID)}
	if !r.HostNetwork() {
		m["netns"] = l.netns(r.ID)
	}
	return m
}
