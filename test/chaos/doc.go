// Package chaos kills, stops and starves the processes of a container runtime at random moments under load, and says
// what was lost.
//
// Clients run pods as a kubelet does: they make the same request again until it is through. Each pod has containers
// whose log and exit code are known beforehand. What the runtime is held to is what CRI answers, what /proc, mounts,
// cgroups, links, filter rules and leases show, and the log files. Nothing is known of the runtime's own records, so
// that others than Berth can be struck as well.
//
// A seed repeats the schedule of strikes and the lives of the pods, not how they interleave. What fails is to be
// understood by the logs, and becomes a fault point of the crash matrix or a test of its own.
package chaos

import (
	"fmt"
	"io"
	"time"
)

// Options are one run.
type Options struct {
	Peer     string        // Berth, Containerd or CRIO
	Runtime  string        // the OCI runtime: runc or crun
	Mix      string        // the name of a mix, or classes of processes separated by commas, which are killed
	Strikes  int           // how many, 0 for as many as the time allows
	Seed     uint64        // of the schedule
	For      time.Duration // how long to strike, 0 for as long as the strikes take
	Longest  time.Duration // how long at most a process is stopped or a disk hangs
	Clients  int           // how many pods live at a time
	Berth    string        // the folder of Berth's programs
	Programs string        // the folder of what a peer other than Berth runs: its daemon, monitor and helpers
	Dir      string        // for all that the run writes
	Version  string        // of what is struck, for the table
	Freezer  string        // the socket of the process that freezes disks, see Freezer
	Machine  bool          // the run has a machine with systemd to itself, and needs no namespaces
	Verbose  bool          // tell each strike
	Out      io.Writer     // where progress and losses are told
}

// The runtimes that can be struck.
const (
	Berth      = "berth"
	Containerd = "containerd"
	CRIO       = "crio"
)

// Run strikes, and returns what it counted. The error says why there could be no run. It expects to be alone in its
// process, mount and network namespace, with a /run of its own, or on its machine; there pods have systemd's cgroups.
func Run(o Options) (*Report, error) {
	m, err := mixOf(o.Mix)
	if err != nil {
		return nil, err
	}
	r := newReport(o)
	s, err := openStage(o, r, m.disks())
	if err != nil {
		return nil, fmt.Errorf("before the first strike: %w", err)
	}
	defer s.close()
	before, err := look(s)
	if err != nil {
		return nil, err
	}
	defer r.tellEvery(time.Minute)()
	l := newLoad(s)
	l.begin()
	k := newStriker(s, l, m)
	k.strikeAll()
	k.heal()
	l.end()
	l.removeAll()
	s.leftBehind(before)
	s.keepLogs()
	r.took = time.Since(r.began)
	return r, nil
}
