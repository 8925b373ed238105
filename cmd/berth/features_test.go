package main

import (
	"errors"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/config"
	"berth/internal/host"
)

// featured is a node that has been told these handlers, and has found out this about them.
func featured(of *handlers, found *foundFeatures) *node {
	n := newNode(config.Default())
	n.handlers.Store(of)
	n.features.asked.Store(of) // nothing is looked for
	n.features.found.Store(found)
	return n
}

// TestListedHandlers leaves out what nobody asked for and what does not work, or is not known to.
func TestListedHandlers(t *testing.T) {
	named := map[string]config.Handler{"broken": {Path: "/b"}}
	all := []host.Runtime{{Name: "crun"}, {Name: "runc"}, {Name: "broken"}}
	tried := []host.Runtime{{Name: "crun", Why: "cgroups"}, {Name: "runc", Works: true}, {Name: "broken", Why: "cgroups"}}
	for name, c := range map[string]struct {
		of    *handlers
		found *foundFeatures
		want  []string
	}{
		"probed":               {&handlers{found: tried, fallback: "runc", probed: true, named: named}, nil, []string{"", "runc", "broken"}},
		"named, not tried":     {&handlers{found: all, fallback: "broken", named: named}, nil, []string{"", "broken"}},
		"named, tried":         {&handlers{found: all, fallback: "broken", named: named}, &foundFeatures{tried: tried}, []string{"", "runc", "broken"}},
		"a default that fails": {&handlers{found: all, fallback: "crun", named: named}, &foundFeatures{tried: tried}, []string{"", "crun", "runc", "broken"}},
	} {
		var got []string
		for _, h := range featured(c.of, c.found).features.handlers() {
			got = append(got, h.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: the handlers are %q, not %q", name, got, c.want)
		}
	}
}

// TestUsernsAfterReload does not refuse a pod for what was found out about another configuration.
func TestUsernsAfterReload(t *testing.T) {
	before := &handlers{}
	now := &handlers{fallback: "runc", named: map[string]config.Handler{"infra": {Driver: config.DriverInfra}, "more": {}}}
	cannot := errors.New("it cannot")
	found := &foundFeatures{about: before, userns: map[string]error{"runc": cannot, "infra": nil}}
	n := featured(now, found)
	for _, h := range []string{"", "runc", "more"} {
		if err := n.features.usernsError(h); err != nil {
			t.Errorf("handler %q: %v", h, err)
		}
	}
	if err := n.features.usernsError("infra"); !errors.Is(err, errInfra) || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("an infra container: %v", err)
	}
	found.about = now
	if err := n.features.usernsError(""); !errors.Is(err, cannot) || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a runtime that cannot: %v", err)
	}
	if err := n.features.usernsError("more"); err != nil {
		t.Errorf("a runtime that was not tried: %v", err)
	}
}
