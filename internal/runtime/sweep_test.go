package runtime

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// unitsOf are the units of a system that calls them as another runtime's, so that it lists none.
type unitsOf struct{ ended []string }

func (*unitsOf) Containers(context.Context) ([]string, error) { return nil, nil }

func (u *unitsOf) EndContainer(_ context.Context, ctr string) error {
	u.ended = append(u.ended, ctr)
	return nil
}

// TestSweepEndsUnitsOfOtherNames checks that the unit of a container that nobody owns is ended although it is called as
// another runtime's, and those of nobody else.
func TestSweepEndsUnitsOfOtherNames(t *testing.T) {
	g := newRig(t)
	kept, lost := g.run("sleep 1000"), g.run("sleep 1000")
	aside := filepath.Join(g.cfg.State, "aside")
	g.ok(os.Rename(g.cfg.bundle(g.pod, lost), aside)) // as if its record and directory had been lost
	units := &unitsOf{}
	g.cfg.Units = units
	live := func(pod string) bool { return pod == g.pod }
	g.ok(g.Sweep(t.Context(), live, func(string) (Handler, error) { return g.handler, nil }))
	if !slices.Equal(units.ended, []string{lost}) {
		t.Errorf("of %s, which nobody owns, and %s it ended the units of %v", lost, kept, units.ended)
	}
	g.ok(os.Rename(aside, g.cfg.bundle(g.pod, lost)))
}
