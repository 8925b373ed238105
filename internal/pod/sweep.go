package pod

import (
	"context"
	"log/slog"

	"berth/internal/network"
	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// sweeper removes what carries the names of this instance's pods and no record owns: the remains of a record that was
// lost.
type sweeper struct {
	layout  *sandbox.Layout
	owned   func(id string) bool // whether a record, also one that cannot be read, has the id
	handler func(name string) (runtime.Handler, error)
	runtime interface {
		Sweep(ctx context.Context, live func(pod string) bool, handler func(name string) (runtime.Handler, error)) error
	}
	network interface {
		Attachments() ([]string, error)
		Detach(ctx context.Context, p network.Pod) error
	}
	cgroups interface {
		Pods(ctx context.Context) (ids []string, err error)
		RemovePod(ctx context.Context, pod string) error
	}
	log *slog.Logger
}

func newSweeper(s *Pods) *sweeper {
	return &sweeper{
		layout: &s.cfg.Layout, owned: s.Catalog.owned, handler: s.bundle.Handlers.Find,
		runtime: s.runtime, network: s.cfg.Network, cgroups: s.cfg.Cgroups, log: s.cfg.Log,
	}
}

// sweep removes what it finds of each kind; one that fails keeps no other from it.
func (s *sweeper) sweep(ctx context.Context) {
	for what, err := range map[string]error{
		"monitors and runtime state": s.runtime.Sweep(ctx, s.owned, s.handler),
		"network attachments":        s.sweepNetworks(ctx),
		"network namespaces":         network.SweepPins(s.layout.NetNS, s.layout.NetNSPrefix(), s.owned),
		"run directories":            rootfs.Sweep(s.layout.PodsState(), s.owned),
		"cgroups":                    s.sweepCgroups(ctx),
	} {
		if err != nil && ctx.Err() == nil {
			s.log.Warn("sweep of what no record owns is not complete; the next start tries again", "what", what, "error",
				err)
		}
	}
}

func (s *sweeper) sweepNetworks(ctx context.Context) error {
	ids, err := s.network.Attachments()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if s.owned(id) {
			continue
		}
		pod := network.Pod{ID: id, NetNS: s.layout.NetNSPin(sandbox.ID(id))}
		if e := s.network.Detach(ctx, pod); e != nil {
			err = e
		}
	}
	return err
}

// sweepCgroups removes the default cgroups of pods that are no more.
func (s *sweeper) sweepCgroups(ctx context.Context) error {
	groups, err := s.cgroups.Pods(ctx)
	for _, id := range groups {
		if sandbox.ID(id).Valid() && !s.owned(id) {
			if e := s.cgroups.RemovePod(ctx, id); e != nil {
				err = e
			}
		}
	}
	return err
}
