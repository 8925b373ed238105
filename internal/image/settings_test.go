package image

import (
	"testing"
	"time"
)

// bare is a pipeline without a store.
func bare(change func(*Config)) *pipeline {
	p, cfg := &pipeline{catalog: &catalog{}}, standard("")
	p.snapshot.Store(&index{})
	change(&cfg)
	p.settings.Store(newSettings(cfg, nil))
	return p
}

// What is made of the settings is made anew only when its own have changed: who waits for a slot goes on waiting for it, and what
// registries have said stays known.
func TestSettingsAreKept(t *testing.T) {
	cfg := standard("")
	first := newSettings(cfg, nil)
	cfg.MaxLayers = 1
	if same := newSettings(cfg, first); same.slots != first.slots || same.remote != first.remote || same.MaxLayers != 1 {
		t.Error("made anew without a reason")
	}
	cfg.MaxParallelLayers++
	if more := newSettings(cfg, first); more.slots == first.slots || more.remote != first.remote {
		t.Error("another number of layers at once changes the slots, and nothing else")
	}
	cfg.StallTimeout += time.Second
	if patient := newSettings(cfg, first); patient.remote == first.remote {
		t.Error("another timeout does not reach the transport")
	}
}
