package restart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/look"
	"berth/internal/op"
	"berth/internal/sandbox"
)

const (
	// removeDelay is how long what has ended stays before it is removed, for those who wait for its end or follow its
	// log: they ask again and again.
	removeDelay = 2 * time.Second
	// leftDelay is the same for what was run in the foreground, which the command removes unless it was left or killed.
	leftDelay = time.Minute
	// logTime is how long a disk may take to remove logs.
	logTime = 10 * time.Second
)

// over is what was run to be removed at its end, and has ended: containers, or the pod with all in it where that is the
// container which it was made for. later is when the next will be over of those that have ended; zero: there is none.
func (p *pod) over() (containers []string, whole bool, later time.Time) {
	for _, c := range p.known.Containers {
		known := p.container(c.ID)
		when := p.of[c.ID].Removal(known)
		if c.State != runtimeapi.ContainerState_CONTAINER_EXITED || when == annotation.Stays {
			continue
		}
		now, at := time.Now(), known.FinishedAt
		if when == annotation.Later {
			at = at.Add(leftDelay - removeDelay)
		}
		if at.After(now) && !known.FinishedAt.After(now) { // else the clock was set back
			if later.IsZero() || at.Before(later) {
				later = at
			}
			continue
		}
		containers = append(containers, c.ID)
		whole = whole || c.Name() == p.of[c.ID].Config.Get().GetMetadata().GetName()
	}
	return containers, whole, later
}

// remove removes what is over of a pod, once it is its turn.
func (k *Keeper) remove(ctx context.Context, of name) error {
	return op.InTurn(ctx, k.going, slotTime, func(ctx context.Context) error { return k.removeNow(ctx, of) })
}

// removeNow removes what is over of a pod, with its logs. A daemon that is killed meanwhile leaves a pod whose
// container has ended, which the next one removes.
func (k *Keeper) removeNow(ctx context.Context, of name) error {
	p := find(k.Catalog.List(), of) // somebody else may have removed it meanwhile
	containers, whole, _ := p.over()
	if !whole {
		rt := &runtime{k.Pods, k.Catalog, &k.ports, k.logs, p}
		var failed []error
		for _, id := range containers {
			failed = append(failed, rt.RemoveContainer(ctx, id))
		}
		return errors.Join(failed...)
	}
	ids := append([]string{p.known.ID}, p.known.Older...)
	for _, id := range ids { // so that nothing writes to its logs any more
		if err := k.Pods.Stop(ctx, sandbox.ID(id)); err != nil {
			return err
		}
	}
	if err := k.removeLogs(ctx, p.newest); err != nil {
		return err
	}
	for _, id := range ids {
		if err := k.Pods.Remove(ctx, sandbox.ID(id)); err != nil {
			return err
		}
	}
	k.Log.Info("a pod of berth run has ended, and was removed", "pod", nameOf(p.newest).name, "id", p.newest.ID)
	return nil
}

// removeLogs removes the directory of logs that berth run made for a pod, which has the pod's name and uid for its
// name.
func (k *Keeper) removeLogs(ctx context.Context, r *sandbox.Record) error {
	n, dir := nameOf(r), r.Config.Get().GetLogDirectory()
	if n.name == "" || n.uid == "" || !filepath.IsAbs(dir) || filepath.Base(dir) != n.name+"_"+n.uid {
		return nil
	}
	if err := onDisk(ctx, k.logs, func() error { return os.RemoveAll(dir) }); err != nil {
		return fmt.Errorf("remove the logs: %w", err)
	}
	return nil
}

// onDisk does something to logs, and leaves it to itself when the disk hangs.
func onDisk(ctx context.Context, logs *look.Disk, do func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, logTime, look.ErrHangs)
	defer cancel()
	_, err := look.Within(ctx, logs, func() (struct{}, error) { return struct{}{}, do() })
	return err
}
