package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Loss is a way in which a runtime fails its user.
type Loss string

// What may be lost. The table of a run has a row for each.
const (
	LostExit    Loss = "exit codes lost"         // told as unknown
	WrongExit   Loss = "exit codes wrong"        // told as another
	Incomplete  Loss = "logs incomplete"         // lines are missing, or torn by nobody that may
	Doubled     Loss = "lines doubled"           // a line is there twice
	TwoAtOnce   Loss = "containers doubled"      // two processes or pods for what was asked for once
	FailedStart Loss = "starts failed"           // the container was told never to have run
	LostPod     Loss = "pods or containers gone" // nobody removed it, and it is not there or not ready
	Stuck       Loss = "requests stuck"          // not through, however often it was made
	WrongAnswer Loss = "answers wrong"           // an exec that says what the program did not
	Crashed     Loss = "daemon ended by itself"  // without having been struck
	Left        Loss = "left behind"             // after all was removed
	Unpromised  Loss = "lost, and not promised"  // counts for nobody: see the page on reliability
)

// losses are the rows, in their order; the last is no failure.
var losses = []Loss{
	LostExit, WrongExit, Incomplete, Doubled, TwoAtOnce, FailedStart, LostPod, Stuck, WrongAnswer, Crashed, Left,
	Unpromised,
}

func (l Loss) counts() bool { return l != Unpromised }

// Report is what a run counted.
type Report struct {
	options Options
	began   time.Time
	took    time.Duration

	mu      sync.Mutex // guards what follows
	pods    int
	strikes map[string]int // by what was done to whom
	losses  map[Loss]int
}

func newReport(o Options) *Report {
	return &Report{options: o, began: time.Now(), strikes: map[string]int{}, losses: map[Loss]int{}}
}

// lose counts a loss, and tells of it.
func (r *Report) lose(l Loss, format string, args ...any) {
	r.mu.Lock()
	r.losses[l]++
	r.mu.Unlock()
	r.say("%s: %s", strings.ToUpper(string(l)), fmt.Sprintf(format, args...))
}

// say tells a line, with the time of day as logs have it.
func (r *Report) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.options.Out, "%s %s\n", time.Now().UTC().Format("15:04:05.000"), text)
}

func (r *Report) struck(what string) {
	r.mu.Lock()
	r.strikes[what]++
	r.mu.Unlock()
}

func (r *Report) podDone() {
	r.mu.Lock()
	r.pods++
	r.mu.Unlock()
}

// Failed says whether something was lost that must not be, or nothing was tried.
func (r *Report) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l, n := range r.losses {
		if l.counts() && n > 0 {
			return true
		}
	}
	return r.pods == 0 || len(r.strikes) == 0 && r.options.Mix != "none"
}

// hits is how many strikes met somebody.
func (r *Report) hits() (n int) {
	for _, times := range r.strikes {
		n += times
	}
	return n
}

// tellEvery says how far the run is, again and again until it is stopped: a run that waits for something is not dead.
func (r *Report) tellEvery(pause time.Duration) (stop func()) {
	ended := make(chan struct{})
	go func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.say("%s", r.Line())
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended) }
}

// Line is the state of a run in one line.
func (r *Report) Line() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lost []string
	for _, l := range losses {
		if n := r.losses[l]; n > 0 {
			lost = append(lost, fmt.Sprintf("%s %d", l, n))
		}
	}
	if lost == nil {
		lost = []string{"nothing lost"}
	}
	return fmt.Sprintf("%d strikes, %d pods; %s", r.hits(), r.pods, strings.Join(lost, ", "))
}

// Table is all that was counted.
func (r *Report) Table() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	o := r.options
	fmt.Fprintf(&b, "%s %s with %s, mix %s, seed %d, %s, %s\n", o.Peer, o.Version, o.Runtime, o.Mix, o.Seed,
		r.began.UTC().Format(time.DateOnly), r.took.Round(time.Second))
	row := func(name string, n int) { fmt.Fprintf(&b, "  %-32s %d\n", name, n) }
	row("pods", r.pods)
	row("strikes", r.hits())
	for _, what := range slices.Sorted(maps.Keys(r.strikes)) {
		row("  "+what, r.strikes[what])
	}
	for _, l := range losses {
		row(string(l), r.losses[l])
	}
	return b.String()
}
