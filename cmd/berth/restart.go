package main

import (
	"context"
	"log/slog"

	"berth/internal/pod"
	"berth/internal/restart"
	"berth/internal/sandbox"
)

// keepRestarting has containers of berth run start again, as their policies say, until the daemon ends.
func keepRestarting(ctx context.Context, pods *pod.Pods, adopted <-chan struct{}, log *slog.Logger) {
	watch := func() restart.Watch { return ends{pod.WatchFor(pods, endsByHand)} }
	k := &restart.Keeper{Pods: pods, Catalog: &pods.Catalog, Watch: watch, Adopted: adopted, Log: log}
	k.Run(ctx)
}

// endsByHand reports whether something of a pod of berth run has ended.
func endsByHand(e pod.Event) bool { return e.Kind == pod.EventStopped && e.Record.ByHand() }

// ends tells of the pods to which that happens.
type ends struct{ *pod.Watcher }

func (e ends) Next(ctx context.Context) (*sandbox.Record, error) {
	happened, err := e.Watcher.Next(ctx)
	return happened.Record, err
}
