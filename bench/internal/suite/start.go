package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/bench/internal/floor"
	"berth/bench/internal/kubelet"
)

func (s *Suite) startOwnNetwork(ctx context.Context) error {
	return s.starts(ctx, "One pod with a network of its own (CNI)", false)
}

func (s *Suite) startHostNetwork(ctx context.Context) error {
	return s.starts(ctx, "One pod on the host's network", true)
}

// starts takes pods through their lives, one at a time. The first round warms caches and does not count.
func (s *Suite) starts(ctx context.Context, section string, hostNetwork bool) error {
	for round := range s.Rounds + 1 {
		add := func(name, runtime string, d time.Duration) {
			if round > 0 {
				s.Report.AddTime(section, name, runtime, d)
			}
		}
		err := s.each(round, func(r *kubelet.Runtime) error {
			took, err := working(r, func() error { return life(ctx, r, hostNetwork, add) })
			addWork(add, r, took)
			return err
		})
		if err != nil {
			return err
		}
		if s.Floor == nil {
			continue
		}
		if err := s.floorLife(ctx, hostNetwork, add); err != nil {
			return err
		}
	}
	return nil
}

type adder func(name, runtime string, d time.Duration)

// The rows of a pod's life.
const (
	rowStart  = "pod start"
	rowStop   = "stop"
	rowRemove = "remove"
	// rowWork is of the daemon, of all that it starts, and of the pods.
	rowWork = "processor time"
)

// afterwards is how long a runtime may work on behind its answers for what it was asked.
const afterwards = 100 * time.Millisecond

// working calls f, and returns the processor time that the runtime takes for it. The time is 0 where nobody counts it.
func working(r *kubelet.Runtime, f func() error) (time.Duration, error) {
	if !r.Counted {
		return 0, f()
	}
	before, err := kubelet.ProcessorTime(r.CgroupParent)
	if err == nil {
		err = f()
	}
	if err != nil {
		return 0, err
	}
	time.Sleep(afterwards)
	after, err := kubelet.ProcessorTime(r.CgroupParent)
	return time.Duration((after - before) * float64(time.Second)), err
}

// addWork adds a row of processor time, where it was counted.
func addWork(add adder, r *kubelet.Runtime, took time.Duration) {
	if r.Counted {
		add(rowWork, r.Name, took)
	}
}

func life(ctx context.Context, r *kubelet.Runtime, hostNetwork bool, add adder) error {
	pod, t, err := r.Start(ctx, hostNetwork)
	if err != nil {
		return err
	}
	stopped, err := pod.Stop(ctx)
	if err != nil {
		return err
	}
	removed, err := pod.Remove(ctx)
	if err != nil {
		return err
	}
	add(rowStart, r.Name, t.Total())
	add("  RunPodSandbox", r.Name, t.Sandbox)
	add("  CreateContainer", r.Name, t.Create)
	add("  StartContainer", r.Name, t.Start)
	add(rowStop, r.Name, stopped)
	add(rowRemove, r.Name, removed)
	add("stop and remove", r.Name, stopped+removed)
	return nil
}

func (s *Suite) floorLife(ctx context.Context, hostNetwork bool, add adder) error {
	c, t, err := s.Floor.Start(ctx, !hostNetwork)
	if err != nil {
		return err
	}
	stopped, err := c.Stop(ctx)
	if err != nil {
		return err
	}
	add(rowStart, FloorName, t.Total())
	add("stop and remove", FloorName, stopped.Total())
	if !hostNetwork {
		add("  network namespace", FloorName, t.Namespace)
		add("  CNI ADD", FloorName, t.Add)
		add("  CNI DEL", FloorName, stopped.Del)
	}
	add("  runtime create", FloorName, t.Create)
	add("  runtime start", FloorName, t.Start)
	add("  kill and exit", FloorName, stopped.Kill)
	add("  runtime delete", FloorName, stopped.Delete)
	return nil
}

const rowExec = "ExecSync of a program that ends at once"

// exec runs a command again and again in one pod of each runtime. The first round does not count.
func (s *Suite) exec(ctx context.Context) error {
	return s.onePodEach(ctx, func(pods map[string]*kubelet.Pod) error {
		return s.besideFloor(ctx, func(bare *floor.Container) error {
			for round := range s.Execs + 1 {
				if err := s.execRound(ctx, round, pods, bare); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func (s *Suite) execRound(ctx context.Context, round int, pods map[string]*kubelet.Pod, bare *floor.Container) error {
	add := func(name, runtime string, took time.Duration) {
		if round > 0 {
			s.Report.AddTime("Exec", name, runtime, took)
		}
	}
	err := s.each(round, func(r *kubelet.Runtime) error {
		work, err := working(r, func() error {
			took, err := pods[r.Name].Exec(ctx, s.Command...)
			add(rowExec, r.Name, took)
			return err
		})
		addWork(add, r, work)
		return err
	})
	if err != nil || bare == nil {
		return err
	}
	took, err := bare.Exec(ctx, s.Command...)
	add(rowExec, FloorName, took)
	return err
}

// besideFloor calls f while a bare container runs; without a floor, with none.
func (s *Suite) besideFloor(ctx context.Context, f func(*floor.Container) error) error {
	if s.Floor == nil {
		return f(nil)
	}
	bare, _, err := s.Floor.Start(ctx, false)
	if err != nil {
		return err
	}
	err = f(bare)
	_, stopErr := bare.Stop(context.WithoutCancel(ctx))
	return errors.Join(err, stopErr)
}

// atOnce starts several pods at the same moment, as a node does after a reboot.
func (s *Suite) atOnce(ctx context.Context) error {
	section := fmt.Sprintf("%d pods at once (CNI)", s.AtOnce)
	for round := range max(s.Rounds/4, 3) {
		err := s.each(round, func(r *kubelet.Runtime) error {
			took, err := working(r, func() error { return s.wave(ctx, r, section) })
			addWork(func(name, runtime string, d time.Duration) { s.Report.AddTime(section, name, runtime, d) }, r, took)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Suite) wave(ctx context.Context, r *kubelet.Runtime, section string) error {
	pods := make([]*kubelet.Pod, s.AtOnce)
	begin := time.Now()
	all, waveCtx := errgroup.WithContext(ctx)
	for i := range pods {
		all.Go(func() (err error) {
			var t kubelet.Phases
			pods[i], t, err = r.Start(waveCtx, false)
			s.Report.AddTime(section, "start of each", r.Name, t.Total())
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	s.Report.AddTime(section, "until all run", r.Name, time.Since(begin))
	begin = time.Now()
	if err := end(ctx, pods, len(pods)); err != nil {
		return err
	}
	s.Report.AddTime(section, "until all are removed", r.Name, time.Since(begin))
	return nil
}

// end stops and removes pods, some at once.
func end(ctx context.Context, pods []*kubelet.Pod, atOnce int) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	for _, p := range pods {
		all.Go(func() error {
			if _, err := p.Stop(ctx); err != nil {
				return err
			}
			_, err := p.Remove(ctx)
			return err
		})
	}
	return all.Wait()
}
