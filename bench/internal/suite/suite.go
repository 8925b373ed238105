// Package suite measures container runtimes side by side. The runs of all are interleaved, one after the other in turn,
// so that what else happens on the machine hits all alike.
package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"

	"berth/bench/internal/floor"
	"berth/bench/internal/kubelet"
	"berth/bench/internal/report"
)

// FloorName is the column of package floor.
const FloorName = "floor"

// Suite is what to measure and how often. Set every field but Floor and Restart, which may be nil.
type Suite struct {
	Runtimes []*kubelet.Runtime
	Floor    *floor.Floor
	// Restart ends the daemon of a runtime, which takes until gone, and begins another.
	Restart  map[string]func() (gone time.Duration, err error)
	Report   *report.Report
	Progress io.Writer

	Rounds  int // pod starts of each kind
	AtOnce  int // pods started at once
	Pods    int // idle pods
	Execs   int
	Reads   int
	Crowd   int           // pods of the node whose daemon is restarted
	Idle    time.Duration // how long idle pods are watched
	Command []string      // what exec runs
}

// Sections are the parts of the suite.
var Sections = map[string]func(*Suite, context.Context) error{
	"start":   (*Suite).startOwnNetwork,
	"host":    (*Suite).startHostNetwork,
	"exec":    (*Suite).exec,
	"atonce":  (*Suite).atOnce,
	"density": (*Suite).density,
	"restart": (*Suite).restart,
}

// order is what runs where nothing is chosen: all that takes no daemon of ours.
var order = []string{"start", "host", "exec", "atonce", "density"}

// Run runs the chosen sections, or all when none is chosen, and leaves no pod.
func (s *Suite) Run(ctx context.Context, chosen []string) (err error) {
	if len(chosen) == 0 {
		chosen = order
	}
	defer func() {
		for _, r := range s.Runtimes {
			err = errors.Join(err, r.Purge())
		}
	}()
	for _, name := range chosen {
		section, ok := Sections[name]
		if !ok {
			return fmt.Errorf("no section %q: there are %s, restart", name, strings.Join(order, ", "))
		}
		begin := time.Now()
		if err := section(s, ctx); err != nil {
			return fmt.Errorf("section %s: %w", name, err)
		}
		fmt.Fprintf(s.Progress, "%s: %s\n", name, time.Since(begin).Round(time.Second))
	}
	return nil
}

// each calls f for every runtime, and begins with another one each round.
func (s *Suite) each(round int, f func(r *kubelet.Runtime) error) error {
	for i := range s.Runtimes {
		if err := f(s.Runtimes[(i+round)%len(s.Runtimes)]); err != nil {
			return err
		}
	}
	return nil
}

// onePodEach starts one pod in every runtime, calls f, and removes the pods.
func (s *Suite) onePodEach(ctx context.Context, f func(pods map[string]*kubelet.Pod) error) (err error) {
	pods := map[string]*kubelet.Pod{}
	defer func() {
		for _, p := range pods {
			err = errors.Join(err, p.Discard())
		}
	}()
	for _, r := range s.Runtimes {
		p, _, err := r.Start(ctx, false)
		if err != nil {
			return err
		}
		pods[r.Name] = p
	}
	return f(pods)
}

func names(runtimes map[string][]*kubelet.Pod) []string {
	var list []string
	for name := range runtimes {
		list = append(list, name)
	}
	sort.Strings(list)
	return list
}
