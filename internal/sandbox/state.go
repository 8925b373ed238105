package sandbox

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// State is where a pod or a container is in its life. Pods and containers use different ones; see the tables.
type State string

// The states of pods and containers.
const (
	Creating State = "creating" // hidden from lists; undone after a crash
	Removing State = "removing" // on the way out; finished after a crash

	Ready    State = "ready"    // pod: its namespaces and network are up
	Stopping State = "stopping" // pod: its containers and network are going down
	Stopped  State = "stopped"  // pod: nothing of it lives any more; its record and logs remain

	Created  State = "created"  // container: its process waits for start
	Starting State = "starting" // container: start was asked of the runtime
	Running  State = "running"  // container: its process was started and has not been seen to end
	Exited   State = "exited"   // container: its process ended; code and times are known
)

// podMoves and containerMoves are the whole truth about which state may follow which.
var (
	podMoves = map[State][]State{
		Creating: {Ready, Removing},
		Ready:    {Stopping},
		Stopping: {Stopped},
		Stopped:  {Removing},
	}
	containerMoves = map[State][]State{
		Creating: {Created, Removing},
		Created:  {Starting, Exited, Removing},
		Starting: {Running, Exited},
		Running:  {Exited},
		Exited:   {Removing},
	}
)

// MoveError says that something asked for a state that cannot follow the present one.
type MoveError struct {
	What     string // "pod" or "container"
	ID       string
	From, To State
}

func (e *MoveError) Error() string {
	return fmt.Sprintf("%s %s is %s and cannot become %s", e.What, e.ID, e.From, e.To)
}

// Unwrap makes it a failed precondition for the caller.
func (e *MoveError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// MoveTo sets the pod's state. It is the only place where one is set.
func (r *Record) MoveTo(to State) error {
	if !slices.Contains(podMoves[r.State], to) {
		return &MoveError{"pod", string(r.ID), r.State, to}
	}
	r.State = to
	return nil
}

// MoveTo sets the container's state. It is the only place where one is set.
func (c *Container) MoveTo(to State) error {
	if !slices.Contains(containerMoves[c.State], to) {
		return &MoveError{"container", string(c.ID), c.State, to}
	}
	c.State = to
	return nil
}

// OfContainer is the state of a container as CRI calls it.
func (s State) OfContainer() runtimeapi.ContainerState {
	switch s {
	case Created, Starting:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	case Running:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	default:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	}
}
