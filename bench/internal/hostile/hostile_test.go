package hostile

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/bench/internal/report"
	"berth/test/fixture"
)

// TestWaysAreKnown has each way be one of the program's, and as many honest neighbours write as hostile ones do.
func TestWaysAreKnown(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(fixture.Repo(), "test/fixture/webapp/hurt.go"))
	if err != nil {
		t.Fatal(err)
	}
	burning := 0
	for _, way := range Ways {
		for _, hostile := range []bool{true, false} {
			p := program(way, hostile, 7)
			if !slices.Equal(p[:2], []string{"/webapp", "hurt"}) || !strings.Contains(string(source), `"`+p[2]+`":`) {
				t.Errorf("%s runs %q", way, p)
			}
			if p[2] == "burn" {
				burning++
			}
		}
	}
	if burning != len(writers) {
		t.Errorf("%d honest neighbours write, of %d that are to", burning, len(writers))
	}
}

// TestHonestOnesWriteAsMuch has the honest neighbours share what the hostile ones wrote.
func TestHonestOnesWriteAsMuch(t *testing.T) {
	r, err := report.New()
	if err != nil {
		t.Fatal(err)
	}
	s := &Suite{Report: r, Ways: []string{"disk", "fork", "hide"}, Neighbours: 5} // of which three write
	for _, mib := range []float64{100, 200, 300} {
		s.note("berth", true, writing, report.Mebibytes, mib)
	}
	s.note("berth", false, writing, report.Mebibytes, 1)
	if got := s.rate("berth"); got != 200*1024/3 {
		t.Errorf("each writes %d KiB a second", got)
	}
	if s.Ways = []string{"fork"}; s.rate("berth") != 0 {
		t.Error("somebody writes who is not to")
	}
}

// TestWhatIsLeft counts what a folder takes and what was made meanwhile.
func TestWhatIsLeft(t *testing.T) {
	dir := t.TempDir()
	n := &node{runtime: "none", group: "/hostilebench-no-such", disks: []volume{{"the disk of roots", dir, nil}}}
	got, err := n.look()
	if err != nil {
		t.Fatal(err)
	}
	if got["processes"] < 1 || got["mounts"] < 1 || got["network links"] < 1 || got["on the disk of roots"] <= 0 {
		t.Errorf("there is %v", got)
	}
	if got["cgroups"] != 0 {
		t.Errorf("a group that is not there has %v groups", got["cgroups"])
	}
	if share := usedShare(dir); share <= 0 || share > 100 {
		t.Errorf("%v percent are used", share)
	}
}
