package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/bench/internal/kubelet"
)

// A container of a real node has some services in its environment and some volumes.
const (
	variables = 30
	volumes   = 12
)

// restart measures how a daemon with many pods ends and begins. The first round does not count.
func (s *Suite) restart(ctx context.Context) error {
	if s.Restart == nil {
		return errors.New("only daemons that were started here are restarted: give -peers")
	}
	pods := map[string][]*kubelet.Pod{}
	for _, r := range s.Runtimes {
		r.Variables, r.Volumes = variables, volumes
		var err error
		if pods[r.Name], err = crowd(ctx, r, s.Crowd); err != nil {
			return err
		}
		r.Variables, r.Volumes = 0, 0
	}
	for round := range s.Rounds + 1 {
		err := s.each(round, func(r *kubelet.Runtime) error { return s.restartOnce(ctx, r, pods[r.Name], round > 0) })
		if err != nil {
			return err
		}
	}
	return nil
}

// crowd starts pods, some at once.
func crowd(ctx context.Context, r *kubelet.Runtime, n int) ([]*kubelet.Pod, error) {
	pods := make([]*kubelet.Pod, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := range pods {
		g.Go(func() (err error) {
			pods[i], _, err = r.Start(ctx, false)
			return err
		})
	}
	return pods, g.Wait()
}

func (s *Suite) restartOnce(ctx context.Context, r *kubelet.Runtime, pods []*kubelet.Pod, counts bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	gone, err := s.Restart[r.Name]()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := r.AwaitList(ctx, len(pods)); err != nil {
		return err
	}
	listed := time.Since(begin)
	if err := kubelet.Reopen(ctx, pods); err != nil {
		return err
	}
	if counts {
		section := fmt.Sprintf("Restart of the daemon with %d pods, whose containers have %d variables and %d volumes",
			len(pods), variables, volumes)
		s.Report.AddTime(section, "SIGTERM until the process is gone", r.Name, gone)
		s.Report.AddTime(section, "start until all are listed", r.Name, listed)
		s.Report.AddTime(section, "start until each log was reopened", r.Name, time.Since(begin))
	}
	return nil
}
