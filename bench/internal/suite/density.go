package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth/bench/internal/footprint"
	"berth/bench/internal/kubelet"
	"berth/bench/internal/report"
)

// density fills every runtime with idle pods, weighs them, watches them idle and polled, times reads, and empties them.
func (s *Suite) density(ctx context.Context) error {
	d := &dense{Suite: s, section: fmt.Sprintf("%d idle pods of one container (CNI)", s.Pods),
		pods: map[string][]*kubelet.Pod{}}
	if err := s.each(0, d.weighEmpty); err != nil {
		return err
	}
	if err := d.fill(ctx); err != nil {
		return err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	steps := []func(context.Context) error{d.weigh, d.watchIdle, d.watchPolled, d.read, d.empty}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

type dense struct {
	*Suite
	section string
	pods    map[string][]*kubelet.Pod
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func (d *dense) weighEmpty(r *kubelet.Runtime) error {
	g, err := d.group(r)
	if err != nil {
		return err
	}
	m, err := footprint.Sum(append(g.Helpers, g.Daemon))
	if err != nil {
		return err
	}
	d.Report.Add(d.section, "daemon without pods, PSS", report.Mebibytes, r.Name, mebibytes(m.PSS))
	return nil
}

func (d *dense) group(r *kubelet.Runtime) (footprint.Group, error) {
	daemon, err := r.Daemon()
	if err != nil {
		return footprint.Group{}, err
	}
	var ids []string
	for _, p := range d.pods[r.Name] {
		ids = append(ids, p.ID)
	}
	g, err := footprint.Search{Daemon: daemon, Mark: kubelet.Mark, Runtime: r.Name, Pods: ids}.Find()
	if err != nil {
		return g, fmt.Errorf("find the processes of %s: %w", r.Name, err)
	}
	return g, nil
}

// fill starts the pods of all runtimes in turn.
func (d *dense) fill(ctx context.Context) error {
	for i := range d.Pods {
		err := d.each(i, func(r *kubelet.Runtime) error {
			p, _, err := r.Start(ctx, false)
			if err != nil {
				return err
			}
			d.pods[r.Name] = append(d.pods[r.Name], p)
			return nil
		})
		if err != nil {
			return fmt.Errorf("pod %d: %w", i+1, err)
		}
	}
	return nil
}

func (d *dense) weigh(context.Context) error {
	return d.each(0, func(r *kubelet.Runtime) error {
		g, err := d.group(r)
		if err != nil {
			return err
		}
		daemon, err := footprint.Occupied(g.Daemon)
		if err != nil {
			return err
		}
		helpers, err := footprint.Sum(g.Helpers)
		if err != nil {
			return err
		}
		perPod := func(v float64) float64 { return v / float64(d.Pods) }
		add := func(name, unit string, v float64) { d.Report.Add(d.section, name, unit, r.Name, v) }
		add("daemon, PSS", report.Mebibytes, mebibytes(daemon.PSS))
		add("helpers of a pod, PSS", report.Mebibytes, perPod(mebibytes(helpers.PSS)))
		add("all together, PSS", report.Mebibytes, mebibytes(daemon.PSS+helpers.PSS))
		add("daemon, threads", report.Count, float64(daemon.Threads))
		add("helpers of a pod, processes", report.Count, perPod(float64(len(g.Helpers))))
		add("helpers of a pod, threads", report.Count, perPod(float64(helpers.Threads)))
		return nil
	})
}

func (d *dense) watchIdle(ctx context.Context) error {
	return d.watch(ctx, "nobody asks", func() error { return pause(ctx, d.Idle) })
}

// watchPolled asks as a kubelet does to see what became of its pods: each second, all pods and all containers.
func (d *dense) watchPolled(ctx context.Context) error {
	return d.watch(ctx, "lists asked for each second", func() error {
		for range int(d.Idle / time.Second) {
			if err := d.each(0, func(r *kubelet.Runtime) error { return r.Relist(ctx) }); err != nil {
				return err
			}
			if err := pause(ctx, time.Second); err != nil {
				return err
			}
		}
		return nil
	})
}

// watch reports what the processes of all runtimes do while f runs.
func (d *dense) watch(ctx context.Context, when string, f func() error) error {
	groups, before := map[string][]int{}, map[string]footprint.Activity{}
	err := d.each(0, func(r *kubelet.Runtime) error {
		g, err := d.group(r)
		groups[r.Name] = append(g.Helpers, g.Daemon)
		if err == nil {
			before[r.Name], err = footprint.Done(groups[r.Name])
		}
		return err
	})
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := f(); err != nil {
		return err
	}
	seconds := time.Since(begin).Seconds()
	return d.each(0, func(r *kubelet.Runtime) error {
		after, err := footprint.Done(groups[r.Name])
		if err != nil {
			return err
		}
		done := after.Sub(before[r.Name])
		d.Report.Add(d.section, "CPU, "+when, report.CPUShare, r.Name, done.CPU.Seconds()*1000/seconds)
		d.Report.Add(d.section, "wake-ups, "+when, report.PerSecond, r.Name, float64(done.Wakeups)/seconds)
		return nil
	})
}

func (d *dense) read(ctx context.Context) error {
	section := fmt.Sprintf("Reads with %d pods", d.Pods)
	for _, read := range kubelet.Reads {
		for round := range d.Reads {
			err := d.each(round, func(r *kubelet.Runtime) error {
				took, err := read.Time(ctx, d.pods[r.Name][round%d.Pods])
				if err == nil {
					d.Report.AddTime(section, read.Name, r.Name, took)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// empty removes all pods and weighs what the daemon keeps.
func (d *dense) empty(ctx context.Context) error {
	var errs []error
	for _, name := range names(d.pods) {
		errs = append(errs, end(ctx, d.pods[name], 4))
		d.pods[name] = nil
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	return d.each(0, func(r *kubelet.Runtime) error {
		g, err := d.group(r)
		if err != nil {
			return err
		}
		m, err := footprint.Sum(append(g.Helpers, g.Daemon))
		if err == nil {
			d.Report.Add(d.section, "daemon when the pods are gone, PSS", report.Mebibytes, r.Name, mebibytes(m.PSS))
		}
		return err
	})
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
