package main

import (
	"context"

	"berth/internal/pod"
	"berth/internal/restart"
	"berth/internal/sandbox"
)

// keepRestarting has containers of berth run start again, as their policies say, until the daemon ends.
func keepRestarting(n *node, adopted <-chan struct{}) {
	k := &restart.Keeper{
		Pods: n.pods, Watch: func() restart.Watch { return ends{n.pods.Watch()} }, Adopted: adopted, Log: n.log,
	}
	k.Run(n.life)
}

// ends are what happens to pods of berth run that ends something of them.
type ends struct{ *pod.Watcher }

// Next passes over all else that happens.
func (e ends) Next(ctx context.Context) (*sandbox.Record, error) {
	for {
		happened, err := e.Watcher.Next(ctx)
		if err != nil {
			return nil, err
		}
		if happened.Kind == pod.EventStopped && happened.Record.ByHand() {
			return happened.Record, nil
		}
	}
}
