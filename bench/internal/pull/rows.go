package pull

import (
	"slices"
	"time"

	"berth/bench/internal/peer"
	"berth/bench/internal/report"
)

// The rows of the report that goals are set for.
const (
	rowTime  = "pull"
	rowPeak  = "peak memory"
	rowStart = "first start"
	rowBoth  = "pull and first start"
	// rowTogether is of the daemon and all that it has started.
	rowTogether = "peak memory with helpers"
	rowWritten  = "written"
	rowCPU      = "processor time"
)

// What Berth shall reach: this share of containerd's time where the link is not what limits, and of its memory and its
// writing everywhere; and where the link limits, this share of the time of a bare download.
const (
	share         = 0.6
	linkShare     = 1.05
	togetherShare = 0.8 // with helpers
)

// Beside another build of Berth: a change may cost this share of its time and of its processor time.
const (
	changeShare = 1.05
	tinyShare   = 1.15 // where there are ten layers of one file
)

func (c Case) goals(names []string) (goals []report.Goal) {
	if slices.Contains(names, "containerd") {
		goals = c.goalsBesideContainerd()
	}
	if slices.Contains(names, peer.Before) {
		time, most := rowTime, changeShare
		if c.Start {
			time, most = rowBoth, tinyShare
		}
		goals = append(goals, report.Goal{Section: c.Title, Name: time, Over: peer.Before, AtMost: most},
			report.Goal{Section: c.Title, Name: rowCPU, Over: peer.Before, AtMost: most})
	}
	return goals
}

func (c Case) goalsBesideContainerd() []report.Goal {
	goals := []report.Goal{{Section: c.Title, Name: rowTime, Over: "containerd", AtMost: share}}
	if c.Link != nil {
		goals[0].Over, goals[0].AtMost = FloorName, linkShare
	}
	return append(goals,
		report.Goal{Section: c.Title, Name: rowPeak, Over: "containerd", AtMost: share},
		report.Goal{Section: c.Title, Name: rowTogether, Over: "containerd", AtMost: togetherShare},
		report.Goal{Section: c.Title, Name: rowWritten, Over: "containerd", AtMost: share})
}

// row is what the name of a step's row is.
func (s Step) row(name string) string {
	if s.Name == "" {
		return name
	}
	return s.Name + ": " + name
}

func (s *Suite) addBytes(c Case, step Step, name, runtime string, n int64) {
	s.Report.Add(c.Title, step.row(name), report.Mebibytes, runtime, float64(n)/(1<<20))
}

// add writes a sample into the report. floor is 0 where nothing was downloaded beside.
func (s *Suite) add(c Case, step Step, runtime string, m *sample, floor time.Duration) {
	ms := func(name string, d time.Duration) { s.Report.AddTime(c.Title, step.row(name), runtime, d) }
	mib := func(name string, n int64) { s.addBytes(c, step, name, runtime, n) }
	ms(rowTime, m.wall)
	if c.Start {
		ms(rowStart, m.start)
		ms(rowBoth, m.wall+m.start)
	}
	if floor > 0 {
		s.Report.Add(c.Title, "pull / download beside it", report.Count, runtime, float64(m.wall)/float64(floor))
	}
	if c.Ext4 {
		ms("pull and sync", m.durable)
	}
	ms(rowCPU, m.cpu)
	if step.Name == "" {
		mib("memory before", m.before)
	}
	mib(rowPeak, m.peak)
	mib(rowWritten, m.written)
	if c.Ext4 {
		mib("written to the disk", m.device)
	}
	mib("store grows by", m.grown)
	mib("received", m.received)
}

// addSeen writes into the report what was seen while a pull was watched. Everything else of such a pull is worth
// nothing.
func (s *Suite) addSeen(c Case, step Step, runtime string, m *seen) {
	mib := func(name string, n int64) { s.addBytes(c, step, name, runtime, n) }
	mib(rowTogether, m.together)
	mib("  with shared pages in each", m.apart)
	mib("heap and stacks", m.heap)
	mib("store grows at most by", m.grown)
}
