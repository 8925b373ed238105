package network

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
)

// CNIConfig is the CNI configuration in force: where it is looked for, what was found there last, and whether its
// plugins are ready. It is watched until Close. Its methods may be called concurrently.
type CNIConfig struct {
	log      *slog.Logger
	dirty    func(path string)      // is told of files to make durable
	settings atomic.Pointer[Config] // what Reconfigure changes of them: directories, template and timeouts
	current  atomic.Pointer[snapshot]
	status   refresher
	cidr     cidrFile

	mu    sync.Mutex // guards watch
	watch *watcher   // nil when it is closed
}

// openCNIConfig takes a first look and begins to watch.
func openCNIConfig(cfg Config) *CNIConfig {
	c := &CNIConfig{log: cfg.Logger, dirty: cfg.Dirty}
	c.settings.Store(&cfg)
	if cfg.Template != "" {
		tidyUnfinished(cfg.ConfigDir)
	}
	c.status.log, c.status.call = cfg.Logger, func(ctx context.Context, conf *netconf) error {
		return askStatus(ctx, &call{
			settings: c.inForce, run: cfg.Run, log: cfg.Logger, name: "cni-status", verb: "STATUS", conf: conf,
		})
	}
	c.status.open()
	c.follow()
	return c
}

// Close stops watching. It waits for a STATUS that is being asked for, having ended it.
func (c *CNIConfig) Close() error {
	err := c.leave()
	c.status.close()
	return err
}

// inForce are the settings that hold now.
func (c *CNIConfig) inForce() *Config { return c.settings.Load() }

// follow begins to watch the directories in force, and takes a first look at them. With mu held, or before anybody else
// knows c.
func (c *CNIConfig) follow() {
	cfg := c.inForce()
	c.watch = newWatcher(append([]string{cfg.ConfigDir}, cfg.PluginDirs...), c.reload, c.log)
}

// Reconfigure takes over the directories, the template and the timeouts of cfg. What is attached stays attached, and is
// detached by its own record.
func (c *CNIConfig) Reconfigure(cfg Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.inForce()
	if c.watch != nil && cfg.ConfigDir == old.ConfigDir && slices.Equal(cfg.PluginDirs, old.PluginDirs) {
		c.settings.Store(&cfg)
		return
	}
	if c.watch != nil {
		_ = c.watch.close() // so that nothing looks at the old places any more
	}
	c.settings.Store(&cfg)
	c.follow()
}

// leave stops watching.
func (c *CNIConfig) leave() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watch == nil {
		return nil
	}
	err := c.watch.close()
	c.watch = nil
	return err
}

// Status answers from what is known. Where plugins can be asked for theirs (CNI 1.1), and their answer is not fresh, it
// also has them asked, for the next caller. It waits only where no answer about the network is known, and for
// firstAnswerWait at most from when it was asked for, so once after a start and after a change to another network.
func (c *CNIConfig) Status() Status {
	s := c.current.Load()
	st := c.statusOf(s)
	if now := c.current.Load(); now != s { // it changed while this waited, which ended the question
		st = c.statusOf(now)
	}
	return st
}

func (c *CNIConfig) statusOf(s *snapshot) Status {
	if s.conf == nil || !s.conf.atLeast("1.1.0") {
		return s.status
	}
	return c.status.apply(s)
}

// reload looks at the configuration. A look that finds a usable one is believed at once. One that does not is believed
// if it is final, or if there was none before: a file may be seen half written. It returns what else must be watched,
// and whether the look was put off.
func (c *CNIConfig) reload(final bool) (beside []string, putOff bool) {
	beside = sources(c.inForce().ConfigDir)
	conf, err := load(c.inForce().ConfigDir, c.inForce().PluginDirs)
	old := c.current.Load()
	if err != nil && !final && old != nil && old.conf != nil {
		return beside, true
	}
	s := &snapshot{conf: conf, status: describe(conf, err)}
	if old != nil && same(old, s) {
		return beside, false
	}
	c.current.Store(s)
	if conf != nil {
		c.log.Info("network configured", "network", conf.Name, "file", conf.File, "plugins", s.status.Plugins)
		if missing := conf.missingIPAM(c.inForce().PluginDirs); len(missing) > 0 {
			c.log.Warn("the network's ipam section names plugins that are not on this node: unless the plugin that has "+
				"the section runs them elsewhere, no pod gets an address", "network", conf.Name, "missing", missing)
		}
		if conf.atLeast("1.1.0") {
			c.status.ask(conf)
		}
	} else {
		c.log.Warn("no usable network", "error", err)
	}
	return beside, false
}

// askStatus asks each plugin of a configuration.
func askStatus(ctx context.Context, c *call) error {
	for _, p := range c.conf.Plugins {
		if _, err := c.one(ctx, p, nil); err != nil {
			return err
		}
	}
	return nil
}
