package image

import (
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/rootfs"
)

// bare is a pipeline without a store.
func bare(change func(*Config)) *pipeline {
	p, cfg := &pipeline{catalog: catalog.New(catalog.NewDisk("", nil), "", nil, nil, nil)}, standard("")
	change(&cfg)
	p.current.settings.Store(newSettings(cfg, nil))
	return p
}

// What is made of the settings is made anew only when its own have changed: who waits for a slot goes on waiting for
// it, and what registries have said stays known.
func TestSettingsAreKept(t *testing.T) {
	cfg := standard("")
	first := newSettings(cfg, nil)
	cfg.MaxLayers = 1
	if same := newSettings(cfg, first); same.slots != first.slots || same.remote != first.remote || same.MaxLayers != 1 {
		t.Error("made anew without a reason")
	}
	cfg.MaxParallelLayers++
	more := newSettings(cfg, first)
	if more.slots != first.slots || more.remote != first.remote {
		t.Error("another number of layers at once makes something anew")
	}
	for range cfg.MaxParallelLayers {
		if _, err := more.slots.Transfer("host").Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cfg.StallTimeout += time.Second
	if patient := newSettings(cfg, first); patient.remote == first.remote {
		t.Error("another timeout does not reach the transport")
	}
}

// TestLayersThatTheKernelMounts takes no more layers than an overlay can have, whatever the configuration says.
func TestLayersThatTheKernelMounts(t *testing.T) {
	s := open(t, t.TempDir(), func(c *Config) { c.MaxLayers = 512 })
	if got := s.pipeline.settings().MaxLayers; got != rootfs.MaxLayers {
		t.Errorf("an image may have %d layers", got)
	}
}

// TestLimitsAreRequired opens no store for a configuration that leaves a limit out.
func TestLimitsAreRequired(t *testing.T) {
	for _, leave := range []func(*Config){
		func(c *Config) { c.MaxLayerMemoryBytes = 0 }, func(c *Config) { c.MaxBufferBytes = 0 },
	} {
		cfg := standard(t.TempDir())
		leave(&cfg)
		if _, err := Open(cfg); !fail.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("opened without a limit: %v", err)
		}
	}
}
