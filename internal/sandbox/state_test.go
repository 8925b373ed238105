package sandbox

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// TestMoves tries every state from every other one: what the tables do not name is refused, and changes nothing.
func TestMoves(t *testing.T) {
	states := []State{Creating, Removing, Ready, Stopping, Stopped, Created, Starting, Running, Exited}
	for what, table := range map[string]map[State][]State{"pod": podMoves, "container": containerMoves} {
		for _, from := range states {
			for _, to := range states {
				state, err := move(what, from, to)
				var refused *MoveError
				switch allowed := slices.Contains(table[from], to); {
				case allowed && (err != nil || state != to):
					t.Errorf("a %s that is %s became %s: %v", what, from, state, err)
				case !allowed && (!errors.As(err, &refused) || !errdefs.IsFailedPrecondition(err) || state != from):
					t.Errorf("a %s that is %s became %s: %v", what, from, state, err)
				}
			}
		}
		if slices.Contains(slices.Concat(slices.Collect(maps.Values(table))...), Creating) {
			t.Errorf("a %s becomes %s again", what, Creating)
		}
	}
}

func move(what string, from, to State) (State, error) {
	if what == "pod" {
		r := &Record{State: from}
		err := r.MoveTo(to)
		return r.State, err
	}
	c := &Container{State: from}
	err := c.MoveTo(to)
	return c.State, err
}

// TestEditLeavesTheOther changes a clone of a record, and finds the record as it was.
func TestEditLeavesTheOther(t *testing.T) {
	r := &Record{Containers: []*Container{{ID: "a", State: Running}, {ID: "b", State: Created}}}
	next := r.Clone()
	if err := next.Edit("a", func(c *Container) error { return c.MoveTo(Exited) }); err != nil {
		t.Fatal(err)
	}
	if r.Container("a").State != Running || next.Container("a").State != Exited ||
		next.Container("b") != r.Container("b") {
		t.Errorf("the record: %+v; the next: %+v", r.Container("a"), next.Container("a"))
	}
	if err := next.Edit("c", func(*Container) error { return nil }); !errdefs.IsNotFound(err) {
		t.Errorf("a container that is not there: %v", err)
	}
}

// TestPlacesAreOfOnePod holds the places of two pods against each other: none is the other's, or within it.
func TestPlacesAreOfOnePod(t *testing.T) {
	l := Layout{Root: "/root", State: "/state", Instance: "berth", NetNS: "/netns"}
	places := func(id ID) []string {
		return []string{l.Pod(id), l.Run(id), l.NetNSPin(id), l.Record(id), l.Exit(id, "c"), l.Rootfs(id, "c"), l.Shm(id),
			l.IPCNSPin(id), l.UTSNSPin(id), UserNSPin(&l, id), StagedMounts(&l, id, "c"), EtcMount(&l, id)}
	}
	one, two := NewID(), NewID()
	for _, a := range places(one) {
		for _, b := range places(two) {
			if a == b || strings.HasPrefix(b, a+"/") || strings.HasPrefix(a, b+"/") {
				t.Errorf("%s and %s are of two pods", a, b)
			}
		}
	}
}
