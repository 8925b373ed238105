package pod

import (
	"context"

	"berth/internal/network"
	"berth/internal/rootfs"
	"berth/internal/sandbox"
)

// sweeper removes what carries our names and no record owns.
type sweeper struct{ *Pods }

// sweep removes what carries our names and no record owns: the remains of a record that was lost.
func (s sweeper) sweep(ctx context.Context) {
	l := &s.cfg.Layout
	for what, err := range map[string]error{
		"monitors and runtime state": s.cfg.Runtime.Sweep(ctx, s.owned, s.cfg.Bundle.Handlers.Find),
		"network attachments":        s.sweepNetworks(ctx),
		"network namespaces":         network.SweepPins(l.NetNS, l.NetNSPrefix(), s.owned),
		"run directories":            rootfs.Sweep(l.PodsState(), s.owned),
		"cgroups":                    s.sweepCgroups(ctx),
	} {
		if err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("sweep of what no record owns is not complete; the next start tries again", "what", what, "error",
				err)
		}
	}
}

func (s sweeper) sweepNetworks(ctx context.Context) error {
	ids, err := s.cfg.Network.Attachments()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if s.owned(id) {
			continue
		}
		pod := network.Pod{ID: id, NetNS: s.cfg.NetNSPin(sandbox.ID(id))}
		if e := s.cfg.Network.Detach(ctx, pod); e != nil {
			err = e
		}
	}
	return err
}

// sweepCgroups removes the default cgroups of pods that are no more.
func (s sweeper) sweepCgroups(ctx context.Context) error {
	groups, err := s.cfg.Cgroups.Pods(ctx)
	for _, id := range groups {
		if sandbox.ID(id).Valid() && !s.owned(id) {
			if e := s.cfg.Cgroups.RemovePod(ctx, id); e != nil {
				err = e
			}
		}
	}
	return err
}
