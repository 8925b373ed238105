package main

import (
	"strings"

	"github.com/containerd/errdefs"

	"berth/internal/config"
	"berth/internal/fail"
	"berth/internal/host"
)

// refusedForHoles says why a handler makes no new pods: its runtime has known holes, and the configuration wants none.
// Pods that there are keep their runtime. A runtime that was not asked for its version yet is taken.
func refusedForHoles(n *node, handler string) error {
	if n.settings.config.Load().KnownHoles != config.HolesRefuse {
		return nil
	}
	h := n.settings.handlers.Load()
	if handler == "" {
		handler = h.fallback
	}
	all := h.found
	if f := n.features.get(); f != nil && f.about == h {
		all = f.tried
	}
	return refuseHoles(all, handler)
}

func refuseHoles(all []host.Runtime, handler string) error {
	r, err := host.Named(all, handler)
	if err != nil {
		return nil // whoever looks for it says so
	}
	var ids []string
	for _, a := range r.Holes() {
		ids = append(ids, a.ID)
	}
	if len(ids) == 0 {
		return nil
	}
	return fail.New(errdefs.ErrFailedPrecondition, "runtime handler %s: containers may get out of %s %s (%s): install a "+
		"version that has this closed, as berth doctor tells, or set known_holes to warn", handler, r.Path, r.Version,
		strings.Join(ids, ", "))
}
