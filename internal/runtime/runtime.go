// Package runtime is the driver that runs containers through an OCI runtime under a monitor: the daemon's side of the
// monitor's socket.
//
// A monitor is started once a pod and outlives the daemon; Adopt finds it again. What can be derived from a pod's or
// container's id is never asked of anybody: the socket, the bundle, the cgroups. So Delete and Shutdown work when
// neither monitor nor runtime remembers anything.
package runtime

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/fail"
	"berth/internal/monitor/wire"
)

// MonitorScope is the unit in which the init system keeps the monitors.
type MonitorScope interface {
	// Hold makes the unit, whose cgroup is Config.Group, and keeps it there until release. It may be called concurrently.
	Hold(ctx context.Context) (release func(), err error)
}

// Units are what the init system keeps for containers.
type Units interface {
	// Containers lists the containers that have a unit. It may have failed, and be of no use.
	Containers(ctx context.Context) ([]string, error)
	// EndContainer kills what is in a container's unit and removes the unit; nil when there is none.
	EndContainer(ctx context.Context, ctr string) error
}

// Config is what a Runtime is made of. All fields are required, but Scope, Units and Tick.
type Config struct {
	Monitor  string // the program berth-monitor
	Root     string // <root>: exits that no daemon was told of go below it
	State    string // <state>: run directories are below it
	Tracking string // the mount point of the cgroup2 hierarchy
	Group    string // below it, the cgroup of the monitors, and of the programs that they start
	// Scope and Units are kept by systemd where that is the cgroup driver; nil elsewhere.
	Scope MonitorScope
	Units Units
	// Helper runs a program of which nothing is left when it returns.
	Helper func(ctx context.Context, name string, cmd *exec.Cmd) error
	Log    *slog.Logger
	// Tick is what the silence of a monitor is counted in; a second when zero.
	Tick time.Duration
	// OnExit is told of each exit, from when a pod is launched or adopted. Exits before that are in the inventory.
	OnExit func(pod, ctr string, e Exit)
	// OnDropped is told of what was dropped of a container's log since it was last told. It may be nil.
	OnDropped func(pod, ctr string, d Dropped)

	name string // of this daemon, which no other has had; see inputFile
}

// Handler is an OCI runtime as configured. It is kept with what was made by it.
type Handler struct {
	Name, Path    string
	Root          string   // where it keeps its state
	SystemdCgroup bool     `json:",omitempty"`
	ExtraArgs     []string `json:",omitempty"`
	// Infra says that a container stands for the pod, and comes before the others. A runtime may make a sandbox of it, in
	// which the others have no process that the host knows.
	Infra bool `json:",omitempty"`
	// Init says that every pod has an init, even one whose containers do not share a PID namespace.
	Init bool `json:",omitempty"`
	// Timeout is of create, and is what the configuration says at the time.
	Timeout time.Duration `json:"-"`
}

// Process is a process that cannot be mistaken for another.
type Process = wire.Process

// Exit is how a container ended.
type Exit struct {
	Process
	Code                  int32 // 128+n where signal n ended it
	Signal                int
	OOMKilled             bool
	StartedAt, FinishedAt time.Time
	Unknown               bool // no process saw how it ended
	Draining              bool // its output may not be whole in the log: the monitor will tell
}

// The states of a container in an inventory.
const (
	Created = wire.Created
	Running = wire.Running
	Exited  = wire.Exited
)

// Inventory is what a monitor holds, by container.
type Inventory struct{ Containers map[string]Found }

// Found is one container of an inventory. Exit is set when it is Exited.
type Found struct {
	State     string
	Process   Process
	StartedAt time.Time
	Exit      *Exit
}

// Create is what a container is created from.
type Create struct {
	Container                  string
	Handler                    Handler
	Spec                       *specs.Spec
	Terminal, Stdin, StdinOnce bool
	Deadline                   time.Duration
	// Owner is whom the standard streams of all its processes are given to; nil leaves that to the OCI runtime.
	Owner *Owner
}

// Owner is a user and a group of the host.
type Owner = wire.Owner

// Log is a file below a directory; an empty Path is no log.
type Log struct {
	Dir, Path string
	// Rate and Burst are how many bytes may be written to it in a second, and at once. A Rate of 0 is no limit. They
	// count at the start of the container.
	Rate, Burst int64
}

// Dropped is what is not in a container's log because of the log's rate.
type Dropped = wire.Dropped

// Runtime starts monitors and speaks to them. Its methods may be called concurrently.
type Runtime struct {
	cfg    Config
	links  *links
	drains *drainer
	left   atomic.Bool  // see Leave
	execs  atomic.Int64 // under way
}

// New makes a Runtime. It starts nothing.
func New(cfg Config) (*Runtime, error) {
	if _, err := os.Stat(cfg.Monitor); err != nil {
		return nil, fmt.Errorf("the monitor program: %w", err)
	}
	r := &Runtime{cfg: cfg}
	r.cfg.name = rand.Text()
	r.links = &links{cfg: &r.cfg, pods: map[string]*link{}, changes: newReplacements()}
	r.drains = newDrainer(r)
	return r, nil
}

var errNoMonitor = fail.New(errdefs.ErrUnavailable, "the pod's monitor does not answer")

// quickTimeout bounds what a monitor answers at once. One that has let it pass gets a tenth of it until it answers
// again.
const quickTimeout = 3 * time.Second

// mostTries is how many monitors, one after another, are asked for the same.
const mostTries = 3

// call asks a pod's monitor. What is not a matter of time, as a create is, is not waited for long. What a monitor did
// not get before it was lost, or may be asked for twice, the next one is asked.
func (r *Runtime) call(ctx context.Context, pod string, q wire.Request, fds ...*os.File) (*wire.Reply, error) {
	return callWhenSent(ctx, r, pod, q, func() {}, fds...)
}

// callWhenSent is call, and calls sent when the request is on its way. What begins something is not sent again then.
func callWhenSent(
	ctx context.Context, r *Runtime, pod string, q wire.Request, sent func(), fds ...*os.File,
) (*wire.Reply, error) {
	for try := 1; ; try++ {
		c, err := r.links.monitor(ctx, pod)
		if err != nil {
			return nil, fmt.Errorf("%s container %s: %w", q.Op, q.Container, err)
		}
		within, done := bound(ctx, c, q.Op)
		var a answer
		w, err := c.send(q, fds)
		if err == nil {
			sent()
			w.left = &r.left
			a, err = w.await(within, c)
		}
		done()
		closeFiles(a.fds)
		var unsent unsentError
		again := errors.As(err, &unsent) || errors.Is(err, errLost) && !begins(q.Op)
		if !again || try == mostTries || ctx.Err() != nil {
			return a.Reply, err
		}
	}
}

func exitOf(e *wire.Exit) *Exit {
	if e == nil {
		return nil
	}
	x := &Exit{Process: e.Process, Code: e.Code, Signal: e.Signal, OOMKilled: e.OOMKilled, Unknown: e.Unknown,
		Draining:   e.Draining,
		FinishedAt: time.Unix(0, e.FinishedAt)}
	if e.StartedAt > 0 {
		x.StartedAt = time.Unix(0, e.StartedAt)
	}
	return x
}

func inventoryOf(list []wire.Container) Inventory {
	inv := Inventory{Containers: map[string]Found{}}
	for _, c := range list {
		f := Found{State: c.State, Process: c.Process, Exit: exitOf(c.Exit)}
		if c.Started > 0 {
			f.StartedAt = time.Unix(0, c.Started)
		}
		inv.Containers[c.ID] = f
	}
	return inv
}
