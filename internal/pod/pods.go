package pod

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/bundle"
	"berth/internal/cgroup/limits"
	"berth/internal/meter"
	"berth/internal/network"
	"berth/internal/op"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/session"
)

// Runtime is what a pod needs of a driver: processes under the pod's monitor. Every call but those of session.Runtime
// may be repeated, and Delete and Shutdown succeed when there is nothing.
type Runtime interface {
	session.Runtime
	Launch(ctx context.Context, pod string) error
	Adopt(ctx context.Context, pod string) (runtime.Inventory, error)
	Create(ctx context.Context, pod string, c runtime.Create) (runtime.Process, error)
	Start(ctx context.Context, pod, ctr string, log runtime.Log, deadline time.Duration) error
	Signal(ctx context.Context, pod, ctr string, sig int) error
	KillAll(ctx context.Context, pod, ctr string) error
	// AwaitExit returns nil when the container has ended and its exit has been told, or is being told, whether a monitor
	// answers or not. It ends nothing itself.
	AwaitExit(ctx context.Context, pod, ctr string) error
	Delete(ctx context.Context, pod, ctr string, h runtime.Handler) error
	Shutdown(ctx context.Context, pod string) error
	Sweep(ctx context.Context, live func(pod string) bool, handler func(name string) (runtime.Handler, error)) error
}

// Network attaches pods to networks. Detach may be repeated and succeeds when nothing is attached.
type Network interface {
	Attach(ctx context.Context, p network.Pod) (network.Result, error)
	Detach(ctx context.Context, p network.Pod) error
	Attachments() ([]string, error)
	// Deadline bounds an Attach and a Detach. It may change with the settings.
	Deadline() time.Duration
}

// Cgroups is what the lifecycle needs of the cgroup driver. All may be repeated.
type Cgroups interface {
	// RemovePod removes the cgroup that a pod has by its id, with all in it; nil without one.
	RemovePod(ctx context.Context, pod string) error
	// Pods are those that have that cgroup, perhaps among other names.
	Pods(ctx context.Context) (ids []string, err error)
	// SetLimits changes the limits of a container's cgroup: all that want has, or none; putBack undoes it. The cgroup, and
	// those of the peers of was, are as records name them. The error is unix.EBUSY where the container uses more already.
	SetLimits(ctx context.Context, ctr string, was limits.Was, want *specs.LinuxResources) (
		putBack func() error, err error)
}

// Config is what Pods is made of. All fields are required but those with a default.
type Config struct {
	sandbox.Layout
	Boot    string         // the boot id: what was made in another boot is gone
	Bundle  bundle.Builder // makes what OCI runtimes are asked for; Open sets its Layout, Log and Projects
	Runtime Runtime
	Network Network
	// UserNS says why pods of a handler cannot have user namespaces; nil if they can, or may try.
	UserNS func(handler string) error
	// Refused says why a handler makes no new pods, nil if it does. It may be nil itself.
	Refused func(handler string) error
	Cgroups Cgroups
	Plugins Plugins           // nil when there are none
	Dirty   func(path string) // tells the flusher of a record
	// Released is told of the image layers of a container that is gone. It must not wait. It may be nil.
	Released func(layers []string)
	Log      *slog.Logger

	// StepSeen, unless nil, is told of each step of making and unmaking.
	StepSeen func(plan, step string, undo bool, took time.Duration, err error)

	Abandon time.Duration // a create for which no caller waits is undone after it; zero is never
	Retry   op.Backoff    // between tries of an undo that fails; 1 s to 1 min
}

// Pods holds every pod of the node.
type Pods struct {
	Catalog Catalog // finds pods and containers
	worker  worker
	Feed    Feed // tells of what happens
	cfg     Config
	board   op.Board // what runs in the lanes

	oomKills atomic.Uint64

	// Meter tells what the pods use, Sessions reaches into their containers, Limiter changes what they may use.
	Meter    *meter.Meter
	Sessions *session.Sessions
	Limiter  *Limiter
	notifier *notifier
	orphans  orphans
	intake   intake

	runtime Runtime         // of cfg
	bundle  *bundle.Builder // of cfg
}

// Close ends the daemon's part: what is under way is cut off, as by a crash, and the pods run on.
func (s *Pods) Close() { s.worker.close() }

// OOMKills is how many containers have ended since the daemon began because the kernel killed them for memory. It never
// waits.
func OOMKills(s *Pods) int { return int(s.oomKills.Load()) }

// Problems returns what a person should look at. It never waits.
func (s *Pods) Problems() []sandbox.Problem {
	x := s.Catalog.index.Load()
	var all []sandbox.Problem
	for id, d := range x.damaged {
		all = append(all, sandbox.Problem{Pod: id, What: d.what()})
	}
	for id, p := range x.pods {
		if began := p.writing.Load(); began != nil && time.Since(*began) >= publishWait {
			all = append(all, sandbox.Problem{Pod: id, What: "the disk of the records, " + s.cfg.Root +
				", does not answer: the pod's " +
				"record is being written; stops and exits go on, nothing new can be made", Since: *began})
		}
		r := p.rec.Load()
		if r.Stuck != nil {
			all = append(all, sandbox.Problem{Pod: id, What: r.Stuck.Error, Since: r.Stuck.Since})
		}
		for _, c := range r.Containers {
			if c.Stuck != nil {
				all = append(all, sandbox.Problem{Pod: id, What: c.Stuck.Error, Since: c.Stuck.Since})
			}
		}
	}
	return append(append(all, s.orphans.problems()...), s.Meter.Problems()...)
}

// Paths names the places on the host that belong to a pod, for people.
func (s *Pods) Paths(r *sandbox.Record) map[string]string {
	l := &s.cfg.Layout
	m := map[string]string{"record": l.Record(r.ID), "run": l.Run(r.ID), "ipc": l.IPCNSPin(r.ID), "uts": l.UTSNSPin(r.ID)}
	if !r.HostNetwork() {
		m["netns"] = l.NetNSPin(r.ID)
	}
	if sandbox.UserNamespace(r.Config.Get()) != nil {
		m["userns"] = sandbox.UserNSPin(l, r.ID)
	}
	return m
}
