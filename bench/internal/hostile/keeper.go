package hostile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/bench/internal/kubelet"
)

// keeper has the neighbours, and does with them what a kubelet does with pods that have a limit of ephemeral storage.
type keeper struct {
	suite   *Suite
	rt      *kubelet.Runtime
	group   string
	hostile bool
	rate    int // of an honest neighbour that writes, in KiB a second

	pods    []*kubelet.Pod // nil where one could not be started again
	clients []func()       // end those of the pod with the same index
	evicted int
	ended   int // by themselves, or by the kernel for want of memory
}

// What a kubelet does by default, and a limit as authors of pods set it.
const (
	keepEvery     = 10 * time.Second
	mostWritten   = 1 << 30  // limits.ephemeral-storage
	mostLog       = 10 << 20 // containerLogMaxSize
	logFiles      = 5        // containerLogMaxFiles
	evictionGrace = 0
	removalGrace  = 2
)

func (k *keeper) way(i int) string { return k.suite.Ways[i%len(k.suite.Ways)] }

// start starts all neighbours.
func (k *keeper) start(ctx context.Context) error {
	k.pods, k.clients = make([]*kubelet.Pod, k.suite.Neighbours), make([]func(), k.suite.Neighbours)
	for i := range k.pods {
		if err := k.begin(ctx, i); err != nil {
			return fmt.Errorf("start a neighbour (%s): %w", k.way(i), err)
		}
	}
	return nil
}

func (k *keeper) begin(ctx context.Context, i int) (err error) {
	rt := k.rt.With(func(r *kubelet.Runtime) {
		r.Idle = program(k.way(i), k.hostile, k.rate)
		r.CgroupParent, r.Memory, r.Processes = k.group, memory, processes
	})
	k.clients[i] = func() {}
	if k.pods[i], _, err = rt.Start(ctx, false); err != nil {
		return err
	}
	if k.hostile {
		k.clients[i] = hold(ctx, k.way(i), k.pods[i])
	}
	return nil
}

// keep looks after the neighbours until it is stopped.
func (k *keeper) keep(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		for pause(ctx, keepEvery) == nil {
			for i := range k.pods {
				if err := k.look(ctx, i); err != nil && ctx.Err() == nil {
					fmt.Fprintf(k.suite.Progress, "  neighbour %d (%s): %v\n", i, k.way(i), err)
				}
			}
		}
	})
	return func() { cancel(); work.Wait() }
}

// look rotates the log of a neighbour and evicts one that has written too much; its place, or that of one that has
// ended, is taken by another.
func (k *keeper) look(ctx context.Context, i int) error {
	p := k.pods[i]
	if p == nil {
		return k.begin(ctx, i)
	}
	if ended, err := p.Ended(ctx); err != nil {
		return err
	} else if ended {
		k.ended++
		return k.replace(ctx, i)
	}
	if err := p.RotateLog(ctx, mostLog, logFiles); err != nil {
		return err
	}
	if written, err := p.Written(ctx); err != nil || written <= mostWritten {
		return err
	}
	k.evicted++
	return k.replace(ctx, i)
}

// replace removes a neighbour and starts another like it.
func (k *keeper) replace(ctx context.Context, i int) error {
	p := k.pods[i]
	// What has begun is ended, whether or not the good pods are done meanwhile.
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	k.clients[i]()
	if _, err := p.StopWithin(whole, evictionGrace); err != nil {
		return err
	}
	if _, err := p.Remove(whole); err != nil {
		return err
	}
	k.pods[i] = nil
	return k.begin(whole, i)
}

// remove removes all neighbours at once, and says how long each took, and all together.
func (k *keeper) remove(ctx context.Context) error {
	begin := time.Now()
	var g errgroup.Group
	for i, p := range k.pods {
		k.clients[i]()
		if p == nil {
			continue
		}
		g.Go(func() error {
			begin := time.Now()
			ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
			defer cancel()
			if _, err := p.StopWithin(ctx, removalGrace); err != nil {
				return fmt.Errorf("stop a neighbour (%s): %w", k.way(i), err)
			}
			if _, err := p.Remove(ctx); err != nil {
				return fmt.Errorf("remove a neighbour (%s): %w", k.way(i), err)
			}
			k.suite.Report.AddTime("Removal of the neighbours, all at the same moment", "each of "+beside(k.hostile),
				k.rt.Name, time.Since(begin))
			return nil
		})
	}
	err := g.Wait()
	k.suite.Report.AddTime("Removal of the neighbours, all at the same moment", "all "+beside(k.hostile), k.rt.Name,
		time.Since(begin))
	return err
}

// removeAll is for a run that failed.
func (k *keeper) removeAll() error {
	var errs []error
	for i, p := range k.pods {
		if k.clients[i] != nil {
			k.clients[i]()
		}
		if p != nil {
			errs = append(errs, p.Discard())
		}
	}
	return errors.Join(errs...)
}
