// Package pull measures what pulling an image costs container runtimes, side by side. Each pull goes to a daemon that
// was just started, on a store that is empty, and the runtimes take turns.
package pull

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"berth/bench/internal/disk"
	"berth/bench/internal/kubelet"
	"berth/bench/internal/link"
	"berth/bench/internal/peer"
	"berth/bench/internal/report"
)

// FloorName is the column of a download that throws away what it gets.
const FloorName = "download"

// Suite is what to measure. Set every field.
type Suite struct {
	Setup    peer.Setup
	Names    []string // of the runtimes, as package peer knows them
	Registry string   // host:port
	Report   *report.Report
	Progress io.Writer
	Rounds   int // of each case; slow links take half as many
}

// Case is one way to pull.
type Case struct {
	Key, Title string
	Steps      []Step
	Link       *link.Shape // nil for loopback
	Ext4       bool        // the store is on an ext4 instead of a tmpfs
	Start      bool        // a pod is started from each image that was pulled
}

// Step is one pull of a case. The steps of a case go to the same daemon and store.
type Step struct {
	Name  string // before the names of its rows; empty for the first
	Image string // name and tag
}

// CgroupParent is where the pods of a Suite whose Setup has this Dir lie. CleanUp removes it.
func CgroupParent(dir string) string { return "/pullbench-" + filepath.Base(dir) }

// CleanUp removes the cgroups that a Suite whose Setup has this Dir leaves.
func CleanUp(dir string) error {
	return errors.Join(kubelet.RemoveCgroup(CgroupParent(dir)), kubelet.RemoveCgroup(peer.BerthGroup(dir, "berth")),
		kubelet.RemoveCgroup(peer.BerthGroup(dir, peer.Before)))
}

// way leads to the registry.
type way struct {
	registry string // host:port
	received func() (int64, error)
}

// Run measures the cases. The first pull of each runtime does not count.
func (s *Suite) Run(ctx context.Context, cases []Case) error {
	for _, name := range s.Names {
		w := way{s.Registry, loopback}
		if err := s.session(ctx, cases[0], name, w, false, func(Step, *sample) {}); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
	}
	for _, c := range cases {
		begin := time.Now()
		if err := s.measure(ctx, c); err != nil {
			return fmt.Errorf("case %s: %w", c.Key, err)
		}
		s.Report.Goals = append(s.Report.Goals, c.goals(s.Names)...)
		fmt.Fprintf(s.Progress, "%s: %s\n", c.Key, time.Since(begin).Round(time.Second))
	}
	return nil
}

func (s *Suite) measure(ctx context.Context, c Case) (err error) {
	if c.Link == nil {
		return s.rounds(ctx, c, way{s.Registry, loopback}, s.Rounds)
	}
	l, err := link.Open(*c.Link, s.Registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := peer.WriteHosts(s.Setup.Images.Certs, l.Addr); err != nil {
		return err
	}
	over := way{l.Addr, func() (int64, error) { return l.Carried(), nil }}
	return s.rounds(ctx, c, over, (s.Rounds+1)/2)
}

// rounds times n pulls of each runtime, and then watches a third as many. It begins with another runtime each time.
func (s *Suite) rounds(ctx context.Context, c Case, w way, n int) error {
	for round := range n {
		floor, err := s.floor(ctx, c, w.registry)
		if err != nil {
			return err
		}
		err = s.round(ctx, c, w, round, false, func(name string, step Step, m *sample) { s.add(c, step, name, m, floor) })
		if err != nil {
			return err
		}
	}
	for round := range (n + 2) / 3 {
		err := s.round(ctx, c, w, round, true, func(name string, step Step, m *sample) { s.addSeen(c, step, name, m.seen) })
		if err != nil {
			return err
		}
	}
	return nil
}

// round has each runtime pull once, beginning with that of the round's number.
func (s *Suite) round(ctx context.Context, c Case, w way, number int, watched bool,
	add func(name string, step Step, m *sample)) error {
	for i := range s.Names {
		name := s.Names[(i+number)%len(s.Names)]
		err := s.session(ctx, c, name, w, watched, func(step Step, m *sample) { add(name, step, m) })
		if err != nil {
			return err
		}
	}
	return nil
}

// floor times a bare download, where a link is what limits.
func (s *Suite) floor(ctx context.Context, c Case, registry string) (time.Duration, error) {
	if c.Link == nil {
		return 0, nil
	}
	took, err := download(ctx, registry, c.Steps[0].Image)
	if err == nil {
		s.Report.AddTime(c.Title, rowTime, FloorName, took)
	}
	return took, err
}

// session starts a runtime on an empty store, takes the steps, and leaves nothing.
func (s *Suite) session(ctx context.Context, c Case, name string, w way, watched bool,
	add func(Step, *sample)) (err error) {
	d, err := store(filepath.Join(s.Setup.Dir, name), c.Ext4)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close(), os.RemoveAll(filepath.Join("/run", name))) }()
	p, err := s.Setup.Start(ctx, name)
	if p != nil {
		defer func() { err = errors.Join(err, p.Stop()) }()
	}
	if err != nil {
		return err
	}
	s.Report.Introduce(p.Name, p.Version)
	pid, err := p.Daemon()
	if err != nil {
		return err
	}
	on := &stand{peer: p, pid: pid, disk: d, received: w.received}
	defer func() { err = errors.Join(err, on.close()) }()
	if c.Start { // a node has the image of its pause containers
		if _, err := p.PullImage(ctx, Pause(w.registry)); err != nil {
			return err
		}
	}
	for _, step := range c.Steps {
		m, err := on.measure(ctx, w.registry+"/"+step.Image, c.Start, watched)
		if err != nil {
			return err
		}
		add(step, m)
	}
	return nil
}

// store is the empty file system of a runtime.
func store(dir string, ext4 bool) (*disk.Disk, error) {
	if ext4 {
		return disk.Ext4(dir, 4<<30)
	}
	return disk.Tmpfs(dir, 0)
}
