package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"berth/internal/config"
	"berth/internal/telemetry"
)

// reloadTimeout bounds a reload. It waits for nothing but trials of runtimes, where no default is named and one is new.
const reloadTimeout = 2 * time.Minute

// errStarting says that there is nothing yet that could take over anything.
var errStarting = errors.New("the daemon is still starting: it reads the configuration by itself")

// reloader takes over another configuration.
type reloader struct{ *node }

// reload takes over what a running daemon can of the configuration as it is now, and says what has changed. No pod is
// touched. When it fails nothing has changed.
func (n reloader) reload(ctx context.Context) ([]config.Change, error) {
	n.reloading.Lock()
	defer n.reloading.Unlock()
	if !n.opened.Load() {
		return nil, errStarting
	}
	n.supervisor.Reloading()
	changes, err := n.takeOver(ctx)
	if err != nil {
		n.log.Error("the configuration was not reloaded, and nothing has changed", "error", err)
		n.supervisor.Ready("The last reload was refused: " + err.Error())
		return nil, fmt.Errorf("reload: %w", err)
	}
	for _, c := range changes {
		n.log.Info("configuration changed", "key", c.Key, "old", c.Old, "new", c.New, "needs_restart", c.Restart)
	}
	n.log.Info("configuration reloaded", "changes", len(changes))
	n.supervisor.Ready("Serving CRI at " + n.cfg.Socket)
	return changes, nil
}

// takeOver does first what may fail.
func (n reloader) takeOver(ctx context.Context) ([]config.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	next, err := config.Load(n.flags)
	if err != nil {
		return nil, err
	}
	old, was := n.inForce.Load(), n.handlers.Load()
	cfg, changes := old.Reload(next)
	found, err := findHandlers(ctx, n.node, cfg)
	if err != nil {
		return nil, err
	}
	level, err := telemetry.ParseLevel(cfg.LogLevel)
	if err != nil {
		return nil, err
	}
	if err := n.network.Reconfigure(n.networkConfig(cfg)); err != nil {
		return nil, err
	}
	if err := n.images.Reconfigure(n.imageConfig(cfg)); err != nil {
		return nil, err
	}
	n.preload.open(n.node, cfg)
	n.handlers.Store(found)
	n.level.Set(level)
	n.inForce.Store(cfg)
	return append(changes, found.since(was)...), nil
}

// since is what changed though no key did: the default that was found by trial, and base specs under their old names.
func (h *handlers) since(old *handlers) (changes []config.Change) {
	if h.fallback != old.fallback && h.probed && old.probed {
		changes = append(changes,
			config.Change{Key: "runtimes.default", Old: old.fallback + " (probed)", New: h.fallback + " (probed)"})
	}
	for name, base := range h.bases {
		if h.named[name].BaseSpec == old.named[name].BaseSpec && !base.Equal(old.bases[name]) {
			path := h.named[name].BaseSpec
			changes = append(changes,
				config.Change{Key: "runtimes." + name + ".base_spec", Old: path, New: path + " as it is now"})
		}
	}
	return changes
}

// reloadOn reloads at every signal until ctx ends.
func (n reloader) reloadOn(ctx context.Context, hup <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			_, _ = n.reload(ctx) // it says in the log how it went
		}
	}
}
