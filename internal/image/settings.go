package image

import (
	"sync"
	"sync/atomic"

	"berth/internal/image/catalog"
	"berth/internal/image/remote"
	"berth/internal/image/slots"
	"berth/internal/limit"
)

// settings are the part of Config that may change while the store is open, and what is derived from it. The value in
// force is immutable; a change puts another one in its place.
type settings struct {
	Config             // without the fields that Reconfigure leaves as they were
	slots  *slots.Pool // the slots for layers being fetched, of the whole store
	remote *remote.Client
}

// newSettings makes settings from a configuration. It keeps from the old ones what is known of registries, and the
// slots in use.
func newSettings(cfg Config, old *settings) *settings {
	s := &settings{Config: cfg}
	if options := s.options(); old != nil && options == old.options() {
		s.remote = old.remote
	} else {
		s.remote = remote.New(remote.Options{
			ConfigDir: options.dir, Connections: options.connections, Stall: cfg.StallTimeout, FirstByte: cfg.FirstByteTimeout,
			ForeignURLs: options.foreign, Buffer: options.buffer,
		})
	}
	if old != nil {
		s.slots = old.slots
		s.slots.Resize(cfg.MaxParallelLayers)
	} else {
		s.slots = slots.New(cfg.MaxParallelLayers, int(limit.SlowDownloads.Limit))
	}
	return s
}

// options returns the options of a client of registries.
type options struct {
	dir                      string
	connections              int
	stall, firstByte, buffer int64
	foreign                  bool
}

func (s *settings) options() options {
	return options{
		s.RegistryConfigDir, s.MaxLayerConnections, int64(s.StallTimeout), int64(s.FirstByteTimeout), s.MaxBufferBytes,
		s.ForeignLayerURLs,
	}
}

// current has the settings in force.
type current struct {
	mu       sync.Mutex // is held while they are changed
	settings atomic.Pointer[settings]
}

// change puts other settings in force, and passes their patterns of pinned names to pinned.
func (c *current) change(cfg Config, pinned func([]string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settings.Store(newSettings(cfg, c.settings.Load()))
	pinned(cfg.Pinned)
}

// Reconfigure puts cfg in force, except Root, Platform, Gunzip, Unpackers, Dirty, InUse, PullSeen, Logger and BootID.
// Pulls that have begun may keep the old settings.
func (s *Store) Reconfigure(cfg Config) error {
	cfg, err := complete(cfg)
	if err != nil {
		return failed("reconfigure image store", err)
	}
	s.pipeline.current.change(cfg, func(pinned []string) { s.catalog.Repin(catalog.Configured, pinned) })
	return nil
}

// Budgets returns the limits that all pulls of a store share, and how much of each is used.
func Budgets(s *Store) []limit.Budget {
	now := s.pipeline.settings()
	return []limit.Budget{
		limit.Downloads.At(int64(now.MaxParallelLayers)).With(int64(now.slots.Used())),
		limit.SlowDownloads.With(int64(now.slots.WithoutSlot())),
		limit.BufferBytes.At(now.MaxBufferBytes).With(now.remote.Buffered()),
	}
}

// Pin keeps the images of these names and ids from being collected, beside those of Config, and no others that an
// earlier call has named.
func Pin(s *Store, names []string) { s.catalog.Repin(catalog.Preloaded, names) }
