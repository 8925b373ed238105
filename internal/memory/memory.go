// Package memory bounds the memory of the daemon itself, and takes the bound away where the daemon keeps dying of it.
//
// The bound is memory.max of the daemon's own group, where it has one, and a limit of the Go runtime below it, which
// has garbage collected earlier. A daemon that is killed there starts again, and finds its pods: what ran away is gone.
// One that needs more than its bound would die for ever, so a note in the state directory counts.
package memory

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/internal/cgroup"
	"berth/internal/record"
)

// So many deaths of memory within so long make the next daemon run without a bound.
const (
	mostDeaths = 3
	within     = 10 * time.Minute
)

// least is the least bound that a daemon gives itself, whatever its start took.
const least = 1 << 30

// None is a configured limit that says that there is to be none; 0 is one by what the start took.
const None = -1

// note is what a daemon leaves for the next one.
type note struct {
	Boot   string      `json:"boot"`
	PID    int         `json:"pid"` // 0 when it has ended by itself
	Deaths []time.Time `json:"deaths,omitempty"`
}

var noteKind = record.Kind{Name: "memory", Version: 1, Oldest: 1}

// Bound is that of this daemon. Open makes it.
type Bound struct {
	group, path string
	log         *slog.Logger

	mu     sync.Mutex // guards what follows
	note   note
	limit  int64  // 0: none
	hard   bool   // the kernel enforces it
	failed string // why it does not, though there is a group
}

// Open reads what an earlier daemon of the state directory left, and notes this one. group is the directory of this
// process's own cgroup v2; "" where it has none. boot names this boot of the machine, and killed says whether the
// kernel has killed a process because of a bound of memory.
func Open(state, group, boot string, killed func(pid int) bool, log *slog.Logger) *Bound {
	b := &Bound{group: group, path: filepath.Join(state, "memory"), log: log}
	var was note
	if _, err := noteKind.Read(b.path, &was); err == nil && was.Boot == boot {
		if was.PID != 0 && killed(was.PID) {
			was.Deaths = append(was.Deaths, time.Now())
			log.Warn("the daemon before this one was killed because its memory is limited", "pid", was.PID,
				"deaths in ten minutes", len(recent(was.Deaths)))
		}
		b.note.Deaths = recent(was.Deaths)
	}
	b.note.Boot, b.note.PID = boot, os.Getpid()
	b.save()
	// A group that an earlier daemon has left has its bound, which is not that of this one.
	if group != "" {
		_ = cgroup.Write(filepath.Join(group, "memory.max"), "max")
	}
	return b
}

func recent(deaths []time.Time) (all []time.Time) {
	for _, d := range deaths {
		if since := time.Since(d); since >= 0 && since < within {
			all = append(all, d)
		}
	}
	return all
}

// save writes the note. Where it cannot, deaths are not counted.
func (b *Bound) save() {
	if err := noteKind.Write(b.path, b.note); err != nil {
		b.log.Warn("the note of how daemons end cannot be written", "error", err)
	}
}

// Set bounds the memory: by what the configuration says or, where that is 0, by what the start has taken.
func (b *Bound) Set(configured int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(b.note.Deaths) >= mostDeaths:
		b.log.Error("the memory of the daemon has no limit: with one it has died too often", "deaths", len(b.note.Deaths))
		return
	case configured == None:
		return
	case configured == 0:
		configured = usual(peak())
	}
	b.limit = configured
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(configured / 100 * 80)
	}
	if b.group == "" {
		return
	}
	if err := cgroup.Write(filepath.Join(b.group, "memory.max"), strconv.FormatInt(configured, 10)); err != nil {
		b.failed = err.Error()
		b.log.Warn("the kernel does not bound the memory of the daemon", "error", err)
		return
	}
	b.hard = true
}

// usual is the bound of a daemon whose start took so many bytes.
func usual(started int64) int64 { return max(least, 4*started) }

// peak is how much memory this process has had at most; 0 where the kernel does not tell.
func peak() int64 {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return min(kib, math.MaxInt64>>13) << 10
		}
	}
	return 0
}

// Close notes that the daemon ends by itself. The bound stays.
func (b *Bound) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note.PID = 0
	b.save()
}

// Status is how the memory of the daemon is bounded.
type Status struct {
	Limit  int64 // bytes; 0: none
	Hard   bool  // the kernel enforces it
	Used   int64 // bytes that cannot be taken back, of the group where there is one
	Deaths int   // of memory, in the ten minutes before this daemon's start
	// Problem is what an administrator should look at, and Since when it began.
	Problem string
	Since   time.Time
}

// Status tells how it is now.
func (b *Bound) Status() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Status{Limit: b.limit, Hard: b.hard, Used: b.used(), Deaths: len(b.note.Deaths)}
	if s.Deaths > 0 {
		s.Since = b.note.Deaths[0]
	}
	switch {
	case s.Deaths >= mostDeaths:
		s.Problem = fmt.Sprintf("the daemon was killed %d times in ten minutes because it reached the limit of its "+
			"memory, and runs without one: raise limits.memory, or end the client that has it take so much, and "+
			"restart it",
			s.Deaths)
	case s.Deaths > 0:
		s.Problem = fmt.Sprintf("the daemon was killed %d times in ten minutes because it reached the limit of its "+
			"memory", s.Deaths)
	case b.failed != "":
		s.Problem = "the kernel does not bound the memory of the daemon: " + b.failed
	}
	return s
}

// unreclaimable is what a group has that the kernel cannot take back when it has no more room, as it can page cache.
func unreclaimable(stat string) (sum int64) {
	for line := range strings.Lines(stat) {
		switch f := strings.Fields(line); f[0] {
		case "anon", "shmem", "slab_unreclaimable", "kernel_stack":
			n, _ := strconv.ParseInt(f[1], 10, 64)
			sum += n
		}
	}
	return sum
}

func (b *Bound) used() int64 {
	if b.group != "" {
		if text, err := os.ReadFile(filepath.Join(b.group, "memory.stat")); err == nil {
			return unreclaimable(string(text))
		}
	}
	text, _ := os.ReadFile("/proc/self/statm")
	if f := strings.Fields(string(text)); len(f) > 1 {
		pages, _ := strconv.ParseInt(f[1], 10, 64)
		return pages * int64(os.Getpagesize())
	}
	return 0
}
