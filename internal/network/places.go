package network

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
)

// places are where configurations and plugins are, with what else may change while the network is open.
type places struct {
	settings atomic.Pointer[Config]
	look     func(final bool) (beside []string, putOff bool)
	log      *slog.Logger

	mu    sync.Mutex // guards watch
	watch *watcher   // nil when it could not be made again, or is closed
}

// set makes the changeable part of cfg the one in force.
func (p *places) set(cfg Config) { p.settings.Store(&cfg) }

// now is the configuration in force, of which Reconfigure changes directories, template and timeouts.
func (p *places) now() *Config { return p.settings.Load() }

// follow begins to watch the directories in force, and takes a first look at them. With mu held, or before anybody else
// knows p.
func (p *places) follow() (err error) {
	cfg := p.now()
	p.watch, err = newWatcher(append([]string{cfg.ConfigDir}, cfg.PluginDirs...), p.look, p.log)
	if err != nil {
		return fmt.Errorf("watch the CNI configuration: %w", err)
	}
	return nil
}

// Reconfigure takes over the directories, the template and the timeouts of cfg. What is attached stays attached, and is
// detached by its own record. When it fails nothing has changed.
func (p *places) Reconfigure(cfg Config) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.now()
	if p.watch != nil && cfg.ConfigDir == old.ConfigDir && slices.Equal(cfg.PluginDirs, old.PluginDirs) {
		p.set(cfg)
		return nil
	}
	if p.watch != nil {
		_ = p.watch.close() // so that nothing looks at the old places any more
		p.watch = nil
	}
	p.set(cfg)
	err := p.follow()
	if err != nil {
		p.settings.Store(old)
		err = errors.Join(err, p.follow())
	}
	return err
}

// leave stops watching.
func (p *places) leave() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watch == nil {
		return nil
	}
	err := p.watch.close()
	p.watch = nil
	return err
}
