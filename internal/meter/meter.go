package meter

import (
	"context"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"berth/internal/cgroup"
	"berth/internal/look"
	"berth/internal/network"
	"berth/internal/sandbox"
)

// Config is what a Meter is made of. All fields are required.
type Config struct {
	Layout sandbox.Layout
	// Records are those of all pods, also of those that are being made, each as it is when it is its turn.
	Records iter.Seq[*sandbox.Record]
	// Cgroup is where in the tree a pod's cgroup is.
	Cgroup func(r *sandbox.Record) (string, error)
	// Background runs work until it ends or the daemon does, which ends the context.
	Background func(work func(context.Context))
	// Projects says that the writable layers are on a file system that keeps account of projects.
	Projects bool
	// Reached tells those who watch that a container has reached a limit.
	Reached func(r *sandbox.Record, ctr sandbox.ID, reason, what string)
	Log     *slog.Logger
}

// Meter tells what pods and containers use. It reads when it is asked, a dozen small files for each, and keeps only
// what it takes to tell a rate the next time. It runs no program, and waits for no disk that does not
// answer (package look).
type Meter struct {
	Storage StorageWatch
	Strays  StrayWatch
	Logs    LogWatch

	cfg   Config
	disk  *look.Disk // of the writable layers
	rates rates
	usage usageReading
}

// New makes a Meter. It reads nothing before it is asked.
func New(cfg Config) *Meter {
	m := &Meter{cfg: cfg, disk: look.NewDisk(), Strays: StrayWatch{cfg: cfg}, Logs: LogWatch{cfg: cfg}}
	m.Storage.meter = m
	return m
}

// Problems are what a person should look at: containers that write more than they may and are not kept from it.
func (m *Meter) Problems() []sandbox.Problem {
	return append(m.Strays.problems(), m.Storage.problems()...)
}

// Use is the resource usage of a pod or a container.
type Use struct {
	cgroup.Usage
	// NanoCores is the processor time of a second, in nanoseconds, over the last seconds, where Rated says that it is
	// known.
	NanoCores uint64
	Rated     bool
}

// Container tells what a container uses; not ok when it has no process any more, or none yet. Of one that is in its
// pod's sandbox nothing is known: that is told of the pod.
func (m *Meter) Container(r *sandbox.Record, c *sandbox.Container, extent cgroup.Extent) (u Use, ok bool) {
	if !c.Live() {
		return u, false
	}
	if r.Sandboxed(c) {
		u.At = time.Now()
		return u, true
	}
	path, err := cgroup.TreePath(c.Cgroup)
	if err == nil {
		err = cgroup.ReadUsage(path, extent, &u.Usage)
	}
	if err != nil {
		return u, false
	}
	// not since the start, before which the runtime's own init has worked in the cgroup
	m.rates.rate(c.ID, c.CreatedAt, &u)
	return u, true
}

// Pod tells what a pod uses, by its own cgroup or, where that is everybody's or cannot be read, as the sum of its
// containers, which parts gives.
func (m *Meter) Pod(r *sandbox.Record, extent cgroup.Extent, parts []Use) (u Use, ok bool) {
	if r.State != sandbox.Ready {
		return u, false
	}
	path, err := m.cfg.Cgroup(r)
	if err == nil {
		err = cgroup.ReadUsage(path, extent, &u.Usage)
	}
	if err != nil {
		u = sum(parts)
		if !slices.ContainsFunc(r.Containers, (*sandbox.Container).Live) {
			u.CPU.Known, u.Memory.Known, u.Tasks.Known = true, true, true // it uses nothing
		}
	}
	began := r.CreatedAt
	if r.Config.Get().GetLinux().GetCgroupParent() != "" {
		// A kubelet makes a pod's cgroup once, for all its sandboxes: what it has used may be what those before used.
		began = time.Time{}
	}
	m.rates.rate(r.ID, began, &u)
	return u, true
}

// sum adds up the usage of the containers of a pod without a cgroup of its own, as a kubelet does. Of no containers
// nothing is known: it may be that none of them could be read.
func sum(parts []Use) Use {
	u := Use{Usage: cgroup.Usage{At: time.Now()}}
	u.Memory.Limit, u.Tasks.Max, u.CPU.Quota = cgroup.Unlimited, cgroup.Unlimited, cgroup.Unlimited
	u.Swap.Limit = cgroup.Unlimited
	for _, p := range parts {
		u.CPU.Known, u.Memory.Known = u.CPU.Known || p.CPU.Known, u.Memory.Known || p.Memory.Known
		u.Tasks.Known, u.Swap.Known = u.Tasks.Known || p.Tasks.Known, u.Swap.Known || p.Swap.Known
		u.CPU.Usage += p.CPU.Usage
		u.CPU.User += p.CPU.User
		u.CPU.System += p.CPU.System
		u.CPU.Periods += p.CPU.Periods
		u.CPU.Throttled += p.CPU.Throttled
		u.CPU.ThrottledTime += p.CPU.ThrottledTime
		u.Memory.Usage += p.Memory.Usage
		u.Memory.WorkingSet += p.Memory.WorkingSet
		u.Memory.RSS += p.Memory.RSS
		u.Memory.Faults += p.Memory.Faults
		u.Memory.MajorFaults += p.Memory.MajorFaults
		u.Memory.Cache += p.Memory.Cache
		u.Memory.Mapped += p.Memory.Mapped
		u.Memory.Active += p.Memory.Active
		u.Memory.Inactive += p.Memory.Inactive
		u.Memory.Kernel += p.Memory.Kernel
		u.Memory.LimitHits += p.Memory.LimitHits
		u.Memory.OOMKills += p.Memory.OOMKills
		u.Swap.Usage += p.Swap.Usage
		u.Tasks.Current += p.Tasks.Current
	}
	return u
}

// Writable is the room that the container's writable layer takes.
func (m *Meter) Writable(r *sandbox.Record, c *sandbox.Container) Usage {
	return m.writableUsage(r.ID, c)
}

// Traffic is what the interfaces of ready pods have carried, by pod. A pod with the node's network has none of its own,
// and one that cannot be read is left out.
func (m *Meter) Traffic(pods []*sandbox.Record) map[sandbox.ID]network.Traffic {
	var ids []sandbox.ID
	var paths []string
	for _, r := range pods {
		if r.State == sandbox.Ready && !r.HostNetwork() {
			ids, paths = append(ids, r.ID), append(paths, m.cfg.Layout.NetNSPin(r.ID))
		}
	}
	all := make(map[sandbox.ID]network.Traffic, len(ids))
	for i, t := range network.Count(paths...) {
		if t.Err == nil {
			all[ids[i]] = t
		}
	}
	return all
}

// Processes are the host's ids of a container's processes.
func (m *Meter) Processes(c *sandbox.Container) ([]int, error) {
	path, err := cgroup.TreePath(c.Cgroup)
	if err != nil {
		return nil, err
	}
	return cgroup.Processes(path)
}

// A rate is taken over at least rateWindow, or over what there is while there is not as much, but neither over an
// instant nor over so long that it says nothing about now.
const (
	rateWindow   = 5 * time.Second
	rateShortest = 100 * time.Millisecond
	rateLongest  = 2 * time.Minute
	sampleEvery  = time.Second
)

// sample is the processor time used until then.
type sample struct {
	at   time.Time
	used uint64
}

// rates keeps the last samples of everything that is asked about: as many as reach back rateWindow.
type rates struct {
	mu    sync.Mutex
	of    map[sandbox.ID][]sample // the oldest first
	swept time.Time
}

// rate fills in what u used in a second, since the newest sample that is old enough. What began lately used nothing
// when it began; where that is not known, began is zero, or ahead of a clock that was set back.
func (s *rates) rate(id sandbox.ID, began time.Time, u *Use) {
	if !u.CPU.Known {
		return
	}
	now := sample{u.At, u.CPU.Usage}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now.at)
	ring := s.of[id]
	ring = slices.DeleteFunc(ring, func(old sample) bool {
		return now.at.Sub(old.at) > rateLongest ||
			old.used > now.used
	})
	if since := now.at.Sub(began); len(ring) == 0 && since >= 0 && since < rateLongest {
		ring = append(ring, sample{began, 0})
	}
	base := 0
	for base+1 < len(ring) && now.at.Sub(ring[base+1].at) >= rateWindow {
		base++
	}
	ring = ring[base:]
	if len(ring) > 0 {
		if window := now.at.Sub(ring[0].at); window >= rateShortest {
			u.NanoCores, u.Rated = uint64(float64(now.used-ring[0].used)/window.Seconds()), true
		}
	}
	if len(ring) == 0 || now.at.Sub(ring[len(ring)-1].at) >= sampleEvery {
		ring = append(ring, now)
	}
	s.of[id] = ring
}

// sweep forgets, once in a while, what is not asked about any more.
func (s *rates) sweep(now time.Time) {
	if s.of == nil {
		s.of = map[sandbox.ID][]sample{}
	}
	if now.Sub(s.swept) < rateLongest {
		return
	}
	s.swept = now
	for id, ring := range s.of {
		if now.Sub(ring[len(ring)-1].at) > rateLongest {
			delete(s.of, id)
		}
	}
}

// PodCgroup is where the pod's cgroup is in the tree, empty where it is unknown.
func (m *Meter) PodCgroup(r *sandbox.Record) string {
	path, err := m.cfg.Cgroup(r)
	if err != nil {
		return ""
	}
	return path
}
