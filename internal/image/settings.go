package image

import (
	"sync"
	"sync/atomic"

	"berth/internal/image/remote"
	"berth/internal/image/slots"
	"berth/internal/limit"
)

// settings are what may change while the store is open, and what is made of them. Nobody changes one that is in force.
type settings struct {
	Config             // but for Root, Platform, Gunzip, Dirty, InUse, Logger and BootID
	slots  *slots.Pool // of layers being fetched, for the whole store
	remote *remote.Client
}

// newSettings keeps of the old ones what need not be made anew: what is known of registries, and who holds a slot.
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

// options are what a transport to registries is made of.
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

// current are the settings in force, which one caller at a time changes.
type current struct {
	mu       sync.Mutex // held by who changes them
	settings atomic.Pointer[settings]
}

// change puts other settings in force, and has pinned take over the patterns of pinned names that go with them.
func (c *current) change(cfg Config, pinned func([]string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settings.Store(newSettings(cfg, c.settings.Load()))
	pinned(cfg.Pinned)
}

// Reconfigure takes over all of cfg but Root, Platform, Gunzip, Dirty, InUse, Logger and BootID. A pull under way may
// go on by what it began with.
func (s *Store) Reconfigure(cfg Config) error {
	cfg, err := complete(cfg)
	if err != nil {
		return failed("reconfigure image store", err)
	}
	s.pipeline.current.change(cfg, s.catalog.Repin)
	return nil
}

// Budgets returns the limits that all pulls of a store share, with what is used of them.
func Budgets(s *Store) []limit.Budget {
	now := s.pipeline.settings()
	return []limit.Budget{
		limit.Downloads.At(int64(now.MaxParallelLayers)).With(int64(now.slots.Used())),
		limit.SlowDownloads.With(int64(now.slots.WithoutSlot())),
		limit.BufferBytes.At(now.MaxBufferBytes).With(now.remote.Buffered()),
	}
}
