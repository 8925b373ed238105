// Package hygiene tells whether the machine is as it was: which processes, mounts, network namespaces, links, filter
// rules, cgroups, files and loop devices are there now and were not before, and which are gone.
//
// A test binary takes a Snapshot first and asks Check at the end. What needs a moment to go (a process that is just
// ending) is given that moment. Processes and cgroups of others who use the machine meanwhile are left out: those of
// tests descend from them or bear Berth's name.
package hygiene

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"berth/test/timeouts"
)

// Kind is a sort of thing that can be left behind.
type Kind string

// The kinds that a Snapshot covers.
const (
	Process Kind = "process"
	Mount   Kind = "mount"
	NetNS   Kind = "network namespace"
	Link    Kind = "network link"
	Rule    Kind = "filter rule"
	Cgroup  Kind = "cgroup"
	File    Kind = "file"
	Loop    Kind = "loop device"
)

// Snapshot holds what is there: for each kind, a name that identifies the thing and words that describe it.
type Snapshot map[Kind]map[string]string

func (s Snapshot) add(kind Kind, name, detail string) {
	if s[kind] == nil {
		s[kind] = map[string]string{}
	}
	s[kind][name] = detail
}

// Leak is one difference between two snapshots.
type Leak struct {
	Kind         Kind
	Name, Detail string
	Gone         bool // it was there before, and is not any more
}

func (l Leak) String() string {
	verb := "left behind"
	if l.Gone {
		verb = "gone"
	}
	if l.Detail == "" {
		return fmt.Sprintf("%s: %s %s", verb, l.Kind, l.Name)
	}
	return fmt.Sprintf("%s: %s %s (%s)", verb, l.Kind, l.Name, l.Detail)
}

// Diff says what differs in after. A process that has ended is no difference.
func (s Snapshot) Diff(after Snapshot) []Leak {
	var leaks []Leak
	for kind, things := range after {
		for name, detail := range things {
			if _, ok := s[kind][name]; !ok {
				leaks = append(leaks, Leak{kind, name, detail, false})
			}
		}
	}
	for kind, things := range s {
		for name, detail := range things {
			if _, ok := after[kind][name]; !ok && kind != Process {
				leaks = append(leaks, Leak{kind, name, detail, true})
			}
		}
	}
	sort.Slice(leaks, func(i, j int) bool { return leaks[i].String() < leaks[j].String() })
	return outermost(leaks)
}

// outermost drops what lies below another leak: a folder stands for all that is in it.
func outermost(leaks []Leak) []Leak {
	is := map[Leak]bool{}
	for _, l := range leaks {
		is[Leak{Kind: l.Kind, Name: l.Name, Gone: l.Gone}] = true
	}
	var kept []Leak
	for _, l := range leaks {
		parent := Leak{Kind: l.Kind, Name: filepath.Dir(l.Name), Gone: l.Gone}
		if l.Kind != Cgroup && l.Kind != File || !is[parent] {
			kept = append(kept, l)
		}
	}
	return kept
}

// Filter chooses the leaks that matter to the asker.
type Filter func(Leak) bool

// Everything is the filter for a machine that nobody else uses.
func Everything(Leak) bool { return true }

// Naming chooses the leaks whose name or description contains one of the words.
func Naming(words ...string) Filter {
	return func(l Leak) bool {
		for _, w := range words {
			if w != "" && (strings.Contains(l.Name, w) || strings.Contains(l.Detail, w)) {
				return true
			}
		}
		return false
	}
}

// Check compares what take returns with before until nothing that the filter chooses differs, or the timeout. It
// returns what still differs then. What changes under the eyes of take may make that fail: then it is taken again.
func Check(before Snapshot, take func() (Snapshot, error), choose Filter, timeout time.Duration) ([]Leak, error) {
	deadline := time.Now().Add(timeout)
	for {
		late := time.Now().After(deadline)
		after, err := take()
		if leaks := keep(before.Diff(after), choose); err == nil && (len(leaks) == 0 || late) {
			return leaks, nil
		}
		if late {
			return nil, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func keep(leaks []Leak, choose Filter) []Leak {
	var kept []Leak
	for _, l := range leaks {
		if choose(l) {
			kept = append(kept, l)
		}
	}
	return kept
}

// SharedMachine says that others work on this machine at the same time (BERTH_SHARED_MACHINE is set), so that only what
// carries a name of ours can be held against us.
func SharedMachine() bool { return os.Getenv("BERTH_SHARED_MACHINE") != "" }

// Main runs the tests of a package, then end (which closes what the package still holds open and says which names were
// its own), and fails when end did or when the machine is not as it was. It returns the exit code for os.Exit.
func Main(m *testing.M, end func() (names []string, err error)) int {
	before, err := Machine()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hygiene: look at the machine before the tests:", err)
		return 1
	}
	code := m.Run()
	choose := Filter(Everything)
	names, err := end()
	if err != nil {
		fmt.Fprintln(os.Stderr, "end the tests of this package:", err)
		code = max(code, 1)
	}
	if SharedMachine() {
		choose = Naming(names...)
	}
	leaks, err := Check(before, Machine, choose, timeouts.For(30*time.Second))
	if err != nil {
		fmt.Fprintln(os.Stderr, "hygiene: look at the machine after the tests:", err)
		return 1
	}
	for _, l := range leaks {
		fmt.Fprintln(os.Stderr, "hygiene:", l)
	}
	if code == 0 && len(leaks) > 0 {
		return 1
	}
	return code
}
