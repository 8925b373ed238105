// Package hostile measures what hostile containers cost the other pods of their node: how fast those start, answer, log
// and stop, against the same node where honest containers burn the same processor and disk; whether a file system of
// the node was filled; how long the hostile ones take to be removed, and what they leave.
package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"berth/bench/internal/kubelet"
	"berth/bench/internal/peer"
	"berth/bench/internal/report"
)

// Ways are what hostile containers do, as /webapp hurt knows it; there are as many containers of each. Clients hold
// sessions of "attach" and "exec", and half-open streams of "half-open".
var Ways = []string{"run", "disk", "nest", "log", "fork", "attach", "exec", "half-open", "signals", "hosts", "hide"}

// writers are the ways that write. As many honest containers write, too; the others compute.
var writers = map[string]bool{"run": true, "disk": true, "nest": true, "log": true, "hosts": true, "hide": true}

// program is what runs in a container that goes a way. An honest one that writes does so at a rate, in KiB a second.
func program(way string, hostile bool, rate int) []string {
	switch {
	case !hostile && writers[way]:
		return []string{"/webapp", "hurt", "burn", strconv.Itoa(rate)}
	case !hostile:
		way = "spin"
	case way == "attach":
		way = "log" // who is attached to it gets more than he reads
	case way == "exec", way == "half-open":
		way = "descriptors"
	}
	return []string{"/webapp", "hurt", way}
}

// Suite is what to measure. Set every field.
type Suite struct {
	Setup      peer.Setup
	Names      []string // of the runtimes, as package peer knows them
	Report     *report.Report
	Progress   io.Writer
	Ways       []string // what the neighbours do, in turns
	Rounds     int
	Neighbours int // containers beside the good pods
	Pods       int // good pods
	Cycles     int // how often the good pods are started and stopped in each round
	Settle     time.Duration
}

// What the neighbours get, as a node of production limits its pods.
const (
	processors = 1
	memory     = 256 << 20 // of each container
	processes  = 128       // of each pod
)

// Run has each runtime serve the good pods beside hostile neighbours and beside honest ones, in turns. The hostile ones
// are first, since the honest ones are to write as much as they did.
func (s *Suite) Run(ctx context.Context) error {
	s.Report.Tail = 95
	for round := range s.Rounds {
		for i := range s.Names {
			name := s.Names[(i+round)%len(s.Names)]
			for n := range 2 {
				hostile := (n+round)%2 == 0
				fmt.Fprintf(s.Progress, "round %d: %s, beside %s\n", round+1, name, beside(hostile))
				begin := time.Now()
				if err := s.phase(ctx, name, hostile); err != nil {
					return fmt.Errorf("%s beside %s: %w", name, beside(hostile), err)
				}
				fmt.Fprintf(s.Progress, "  %s\n", time.Since(begin).Round(time.Second))
			}
		}
	}
	s.compare()
	return nil
}

// writing names what was written to the disks.
const writing = "written to the disks a second"

// rate is how much each honest neighbour that writes is to write, in KiB a second, so that all of them write as much as
// the hostile ones of this runtime did.
func (s *Suite) rate(name string) int {
	n := 0
	for i := range s.Neighbours {
		if writers[s.Ways[i%len(s.Ways)]] {
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return max(1, int(1024*s.Report.Quantile(section(true), writing, name, 0.5))/n)
}

func section(hostile bool) string { return "The node beside " + beside(hostile) }

func beside(hostile bool) string {
	if hostile {
		return "hostile ones"
	}
	return "honest ones"
}

// phase is one runtime on empty disks, with neighbours of one kind.
func (s *Suite) phase(ctx context.Context, name string, hostile bool) (err error) {
	n, err := furnish(s.Setup.Dir, name, filepath.Join(s.Setup.CgroupParent, name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	p, err := s.Setup.Start(ctx, name)
	if p != nil {
		defer func() { err = errors.Join(err, p.Stop()) }()
	}
	if err != nil {
		return err
	}
	s.Report.Introduce(name, p.Version)
	return s.beside(ctx, p, n, hostile)
}

// beside starts the neighbours, measures the good pods, and removes the neighbours.
func (s *Suite) beside(ctx context.Context, p *peer.Peer, n *node, hostile bool) (err error) {
	defer func() { err = errors.Join(err, p.Purge()) }()
	if err := s.warm(ctx, p); err != nil {
		return err
	}
	clean, err := n.look()
	if err != nil {
		return err
	}
	crowd := filepath.Join(p.CgroupParent, "neighbours")
	if err := errors.Join(kubelet.Weigh(p.CgroupParent), kubelet.LimitProcessors(crowd, processors)); err != nil {
		return err
	}
	k := &keeper{suite: s, rt: &p.Runtime, group: crowd, hostile: hostile}
	if !hostile {
		k.rate = s.rate(p.Name)
	}
	full := n.watch()
	if err := k.start(ctx); err != nil {
		return errors.Join(err, k.removeAll())
	}
	stopKeeping := k.keep(ctx)
	err = pause(ctx, s.Settle)
	before := n.work(crowd)
	if err == nil {
		err = s.good(ctx, p, hostile)
	}
	after := n.work(crowd)
	stopKeeping()
	s.note(p.Name, hostile, "processor of the neighbours", report.CPUShare, after.cpuSince(before))
	s.note(p.Name, hostile, writing, report.Mebibytes, after.writtenSince(before))
	s.note(p.Name, hostile, "neighbours evicted for what they wrote", report.Count, float64(k.evicted))
	s.note(p.Name, hostile, "neighbours that ended, and were started again", report.Count, float64(k.ended))
	if err != nil {
		return errors.Join(err, k.removeAll())
	}
	if err := k.remove(ctx); err != nil {
		return err
	}
	for _, f := range full() {
		s.note(p.Name, hostile, "most used of "+f.name, report.Percent, f.share)
	}
	if err := kubelet.RemoveCgroup(crowd); err != nil {
		return err
	}
	return s.left(n, clean, hostile)
}

// warm has one pod live and die, so that what a runtime makes once for all pods is there.
func (s *Suite) warm(ctx context.Context, p *peer.Peer) error {
	pod, _, err := p.Runtime.With(goodPod).Start(ctx, false)
	if err != nil {
		return err
	}
	return pod.Discard()
}

// note adds what is no time of a good pod.
func (s *Suite) note(name string, hostile bool, what, unit string, value float64) {
	s.Report.Add(section(hostile), what, unit, name, value)
}

// compare adds what the goal is about: the tail beside hostile neighbours as a share of that beside honest ones.
func (s *Suite) compare() {
	for _, what := range goods {
		for _, q := range []float64{0.5, 0.95} {
			for _, name := range s.Names {
				section := title(what)
				bad := s.Report.Quantile(section, beside(true), name, q)
				row := fmt.Sprintf("%s, p%.0f", what, q*100)
				s.Report.Add("Beside hostile ones over beside honest ones", row, report.Count, name,
					bad/s.Report.Quantile(section, beside(false), name, q))
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
