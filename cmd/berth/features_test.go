package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/config"
	"berth/internal/host"
)

// featured is a node that has been told these handlers, and has found out this about them.
func featured(of *handlers, found *foundFeatures) *node {
	n := newNode(config.Default())
	n.settings.handlers.Store(of)
	n.features.asked.Store(of) // nothing is looked for
	n.features.limit = 0
	if found != nil {
		found.at, found.pause, found.whole = time.Now(), time.Hour, true
	}
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
		"probed": {&handlers{found: tried, fallback: "runc", probed: true, named: named}, nil,
			[]string{"", "runc", "broken"}},
		"named, not tried": {&handlers{found: all, fallback: "broken", named: named}, nil, []string{"", "broken"}},
		"named, tried": {&handlers{found: all, fallback: "broken", named: named}, &foundFeatures{tried: tried},
			[]string{"", "runc", "broken"}},
		"a default that fails": {&handlers{found: all, fallback: "crun", named: named}, &foundFeatures{tried: tried},
			[]string{"", "crun", "runc", "broken"}},
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

// The first to ask for the handlers is told what they can do, if that is found out soon; one that hangs makes nobody
// wait for long.
func TestFirstStatusWaits(t *testing.T) {
	now := &handlers{fallback: "runc"}
	slow := make(chan struct{})
	for _, c := range []struct {
		hangs bool
		want  bool
	}{{false, true}, {true, false}} {
		n := featured(now, nil)
		n.features.asked.Store(nil)
		n.features.limit = 10 * time.Millisecond
		if !c.hangs {
			n.features.limit = time.Hour
		}
		n.features.look = func(context.Context, *handlers, func(foundFeatures)) *foundFeatures {
			if c.hangs {
				<-slow
			}
			return &foundFeatures{about: now, userns: map[string]error{"runc": nil}}
		}
		for range 2 {
			if got := n.features.handlers()[0].Features.UserNamespaces; got != c.want {
				t.Errorf("where a trial hangs (%v): user namespaces: %v", c.hangs, got)
			}
		}
		if c.hangs {
			close(slow)
			n.background.running.Wait()
			if !n.features.handlers()[0].Features.UserNamespaces {
				t.Error("what was found later is not told")
			}
		}
	}
}

// TestRuntimeThatHangsHidesNoOther has the trial of one runtime hang: what is known of the others is told meanwhile.
func TestRuntimeThatHangsHidesNoOther(t *testing.T) {
	now := &handlers{fallback: "runc", found: []host.Runtime{{Name: "runc", Works: true}, {Name: "slow", Works: true}}}
	n := featured(now, nil)
	n.features.asked.Store(nil)
	slow := make(chan struct{})
	n.features.look = func(_ context.Context, _ *handlers, tell func(foundFeatures)) *foundFeatures {
		tell(foundFeatures{about: now, userns: map[string]error{"runc": nil}})
		<-slow
		return &foundFeatures{about: now, userns: map[string]error{"runc": nil, "slow": nil}}
	}
	told := func() (all []bool) {
		for _, h := range n.features.handlers() {
			all = append(all, h.Features.UserNamespaces)
		}
		return all
	}
	n.features.limit = 10 * time.Millisecond
	if got := told(); !slices.Equal(got, []bool{true, true, false}) {
		t.Errorf("while one hangs: %v", got)
	}
	close(slow)
	n.background.running.Wait()
	if got := told(); !slices.Equal(got, []bool{true, true, true}) {
		t.Errorf("when it is known: %v", got)
	}
}

// A runtime that worked once stays in the list when another try of it fails.
func TestRuntimeThatWorkedStays(t *testing.T) {
	now := &handlers{}
	before := &foundFeatures{about: now, tried: []host.Runtime{{Name: "runc", Works: true}, {Name: "crun"}}}
	failed := []host.Runtime{{Name: "runc"}, {Name: "crun"}}
	f := &foundFeatures{about: now, tried: failed}
	f.since(before)
	if !f.works("runc") || f.works("crun") {
		t.Errorf("tried: %+v", f.tried)
	}
	if failed[0].Works {
		t.Error("what the handlers share was changed")
	}
}

// What did not work for a reason that passed is found to work later, by whoever asks then, and not before its time.
// What worked once is not taken back for such a reason.
func TestFeaturesAreTriedAgain(t *testing.T) {
	now, passing := &handlers{fallback: "runc"}, errors.New("no room")
	n := featured(now, nil)
	n.features.asked.Store(nil)
	looks := make(chan *foundFeatures)
	n.features.look = func(context.Context, *handlers, func(foundFeatures)) *foundFeatures { return <-looks }
	result := func(mapped, runc, crun error) {
		t.Helper()
		was := n.features.get()
		n.features.get() // a second one asks
		userns := map[string]error{"runc": runc, "crun": crun, "infra": errInfra}
		looks <- &foundFeatures{about: now, mapped: mapped, userns: userns}
		n.background.running.Wait()
		if n.features.found.Load() == was {
			t.Error("nothing was found")
		}
	}
	quiet := func() {
		t.Helper()
		n.features.get()
		select {
		case looks <- nil:
			t.Error("it is tried before its time")
		case <-time.After(20 * time.Millisecond):
		}
	}
	later := func() {
		f := *n.features.found.Load()
		f.at = f.at.Add(-f.pause)
		n.features.found.Store(&f)
	}
	result(passing, passing, nil)
	if err := n.features.usernsError(""); !errors.Is(err, passing) {
		t.Errorf("a node without room: %v", err)
	}
	quiet()
	later()
	result(nil, passing, passing)
	if f := n.features.get(); f.pause != 2*firstRetry || f.mapped != nil || f.userns["crun"] != nil {
		t.Errorf("tried again: %+v", f)
	}
	quiet()
	later()
	result(passing, nil, nil)
	if err := n.features.usernsError(""); err != nil {
		t.Errorf("a node with room again: %v", err)
	}
	later()
	quiet()
}
