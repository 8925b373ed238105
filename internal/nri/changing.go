package nri

import (
	"context"
	"time"

	"github.com/containerd/nri/pkg/api"
)

// changedAtOnce is how many containers are changed at the same time for a plugin that joins.
const changedAtOnce = 8

// changeAll makes changes to many containers, several at once and those of one container in their order, and returns
// how many containers have not all of theirs when the time is over. A change that hangs is left to end by itself.
func changeAll(
	ctx context.Context, within time.Duration, updates []*api.ContainerUpdate,
	change func(context.Context, []*api.ContainerUpdate),
) (left int) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	all := byContainer(updates)
	left = len(all)
	turns, done := make(chan struct{}, changedAtOnce), make(chan struct{}, len(all))
	for _, of := range all {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return left - len(done)
		}
		go func() {
			change(ctx, of)
			<-turns
			done <- struct{}{}
		}()
	}
	for left > 0 {
		select {
		case <-done:
			left--
		case <-ctx.Done():
			return left - len(done)
		}
	}
	return 0
}

// byContainer sorts updates into those of each container, in the order in which these come first.
func byContainer(updates []*api.ContainerUpdate) (all [][]*api.ContainerUpdate) {
	at := map[string]int{}
	for _, u := range updates {
		i, known := at[u.GetContainerId()]
		if !known {
			i = len(all)
			at[u.GetContainerId()] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], u)
	}
	return all
}
