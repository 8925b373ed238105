package pull

import (
	"time"

	"berth/bench/internal/report"
)

// The rows of the report that goals are set for.
const (
	rowTime    = "pull"
	rowPeak    = "peak memory"
	rowWritten = "written"
)

// What Berth shall reach: this share of containerd's time where the link is not what limits, and of its memory and its
// writing everywhere; and where the link limits, this share of the time of a bare download.
const (
	share     = 0.6
	linkShare = 1.05
)

func (c Case) goals() []report.Goal {
	goals := []report.Goal{{Section: c.Title, Name: rowTime, Over: "containerd", AtMost: share}}
	if c.Link != nil {
		goals[0].Over, goals[0].AtMost = FloorName, linkShare
	}
	return append(goals,
		report.Goal{Section: c.Title, Name: rowPeak, Over: "containerd", AtMost: share},
		report.Goal{Section: c.Title, Name: rowWritten, Over: "containerd", AtMost: share})
}

// add writes a sample into the report. floor is 0 where nothing was downloaded beside.
func (s *Suite) add(c Case, step Step, runtime string, m *sample, floor time.Duration) {
	prefix := ""
	if step.Name != "" {
		prefix = step.Name + ": "
	}
	ms := func(name string, d time.Duration) { s.Report.AddTime(c.Title, prefix+name, runtime, d) }
	mib := func(name string, n int64) {
		s.Report.Add(c.Title, prefix+name, report.Mebibytes, runtime, float64(n)/(1<<20))
	}
	ms(rowTime, m.wall)
	if floor > 0 {
		s.Report.Add(c.Title, "pull / download beside it", report.Count, runtime, float64(m.wall)/float64(floor))
	}
	if c.Ext4 {
		ms("pull and sync", m.durable)
	}
	ms("processor time", m.cpu)
	if step.Name == "" {
		mib("memory before", m.before)
	}
	mib(rowPeak, m.peak)
	mib("  of it heap and stacks", m.heap)
	mib(rowWritten, m.written)
	if c.Ext4 {
		mib("written to the disk", m.device)
	}
	mib("store grows by", m.grown)
	mib("  at most by", m.grownMost)
	mib("received", m.received)
}
