package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"berth/internal/config"
	"berth/internal/supervisor"
	"berth/internal/telemetry"
)

// reloadTimeout bounds a reload. It waits for nothing but trials of runtimes, where no default is named and one is new.
const reloadTimeout = 2 * time.Minute

// reloader takes over another configuration.
type reloader struct {
	flags      config.Flags // where the configuration comes from
	socket     string
	settings   *settings
	trials     *runtimeTrials
	level      *slog.LevelVar
	log        *slog.Logger
	supervisor *supervisor.Supervisor
	// reconfigure has the parts of the daemon take over a configuration.
	reconfigure func(*config.Config) error

	mu sync.Mutex // held during a reload: there is one at a time
}

func (n *node) newReloader(flags config.Flags) *reloader {
	return &reloader{
		flags: flags, socket: n.cfg.Socket, settings: n.settings, trials: n.trials, level: n.level, log: n.log,
		supervisor: n.supervisor, reconfigure: n.reconfigure,
	}
}

// reload takes over what a running daemon can of the configuration as it is now, and says what has changed. No pod is
// touched. When it fails nothing has changed.
func (r *reloader) reload(ctx context.Context) ([]config.Change, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.supervisor.Reloading()
	changes, err := r.takeOver(ctx)
	if err != nil {
		r.log.Error("the configuration was not reloaded, and nothing has changed", "error", err)
		r.supervisor.Ready("The last reload was refused: " + err.Error())
		return nil, fmt.Errorf("reload: %w", err)
	}
	for _, c := range changes {
		r.log.Info("configuration changed", "key", c.Key, "old", c.Old, "new", c.New, "needs_restart", c.Restart)
	}
	r.log.Info("configuration reloaded", "changes", len(changes))
	r.supervisor.Ready("Serving CRI at " + r.socket)
	return changes, nil
}

// takeOver does first what may fail.
func (r *reloader) takeOver(ctx context.Context) ([]config.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	next, err := config.Load(r.flags)
	if err != nil {
		return nil, err
	}
	old, was := r.settings.config.Load(), r.settings.handlers.Load()
	cfg, changes := old.Reload(next)
	found, err := findHandlers(ctx, r.trials, cfg)
	if err == nil {
		err = found.whole()
	}
	if err != nil {
		return nil, err
	}
	level, err := telemetry.ParseLevel(cfg.LogLevel)
	if err != nil {
		return nil, err
	}
	if err := r.reconfigure(cfg); err != nil {
		return nil, err
	}
	r.settings.handlers.Store(found)
	r.level.Set(level)
	r.settings.config.Store(cfg)
	return append(changes, found.since(was)...), nil
}

// since is what changed though no key did: the default that was found by trial, and base specs under their old names.
func (h *handlers) since(old *handlers) (changes []config.Change) {
	if h.fallback != old.fallback && h.probed && old.probed {
		changes = append(changes, config.Change{
			Key: "runtimes.default", Old: old.fallback + " (probed)", New: h.fallback + " (probed)",
		})
	}
	for name, base := range h.bases {
		if h.named[name].BaseSpec == old.named[name].BaseSpec && !base.Equal(old.bases[name]) {
			path := h.named[name].BaseSpec
			changes = append(changes, config.Change{
				Key: "runtimes." + name + ".base_spec", Old: path, New: path + " as it is now",
			})
		}
	}
	return changes
}

// reloadOn reloads at every signal until ctx ends.
func (r *reloader) reloadOn(ctx context.Context, hup <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			_, _ = r.reload(ctx) // it says in the log how it went
		}
	}
}
