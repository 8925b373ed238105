package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// load is the clients that run pods while the stage is struck.
type load struct {
	s    *stage
	wait sync.WaitGroup
	over chan struct{} // closed when no new pod is begun
}

func newLoad(s *stage) *load {
	return &load{s: s, over: make(chan struct{})}
}

// begin starts the clients, and the one that looks for what is there twice.
func (l *load) begin() {
	for i := range l.s.Clients {
		l.wait.Go(func() {
			random := rand.New(rand.NewPCG(l.s.Seed, uint64(i+1)))
			for n := 0; !l.isOver(); n++ {
				newLife(l.s, random, i, n).live()
				l.s.report.podDone()
			}
		})
	}
	go l.s.watchDoubles(l.over)
}

func (l *load) isOver() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// end has the clients finish the pods that they have, and waits for that.
func (l *load) end() {
	close(l.over)
	l.wait.Wait()
}

// removeAll removes what is left of pods that were given up.
func (l *load) removeAll() {
	c := l.s.client
	var pods []*cri.PodSandbox
	err := c.repeat("list pods", func(ctx context.Context) error {
		resp, err := c.pods.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		pods = resp.GetItems()
		return err
	})
	for _, p := range pods {
		if err == nil {
			err = c.removePod(p.Id)
		}
	}
	if err != nil {
		l.s.report.lose(Stuck, "at the end, %v", err)
	}
}

// removePod stops and removes a pod.
func (c *client) removePod(id string) error {
	err := c.repeat("stop pod "+id, func(ctx context.Context) error {
		_, err := c.pods.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		return err
	})
	if err != nil {
		return err
	}
	return c.repeat("remove pod "+id, func(ctx context.Context) error {
		_, err := c.pods.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}

// watchDoubles looks for containers that run twice, and for pods that are there twice, until it is over.
func (s *stage) watchDoubles(over <-chan struct{}) {
	told := map[string]bool{}
	for {
		select {
		case <-over:
			return
		case <-time.After(500 * time.Millisecond):
		}
		for name, pids := range mainProcesses() {
			if len(pids) > 1 && !told[name] && len(mainProcesses()[name]) > 1 {
				told[name] = true
				s.report.lose(TwoAtOnce, "%s runs as processes %v", name, pids)
			}
		}
		for name, ids := range s.podsByName() {
			if len(ids) > 1 && !told[name] {
				told[name] = true
				s.report.lose(TwoAtOnce, "pod %s is there as %v", name, ids)
			}
		}
	}
}

// mainProcesses are those that containers were made for, by the mark that each has as its last argument.
func mainProcesses() map[string][]int {
	found := map[string][]int{}
	for _, p := range processes() {
		if last := p.argv[len(p.argv)-1]; p.program() == "webapp" && isMark(last) {
			found[last] = append(found[last], p.pid)
		}
	}
	return found
}

// podsByName are the pods that are ready.
func (s *stage) podsByName() map[string][]string {
	ctx, cancel := context.WithTimeout(context.Background(), tryFor())
	defer cancel()
	resp, _ := s.client.pods.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	found := map[string][]string{}
	for _, p := range resp.GetItems() {
		if p.State != cri.PodSandboxState_SANDBOX_READY {
			continue // of one that was not made to its end; it is there until it is undone
		}
		name := fmt.Sprintf("%s/%d", p.GetMetadata().GetName(), p.GetMetadata().GetAttempt())
		found[name] = append(found[name], p.Id)
	}
	return found
}
