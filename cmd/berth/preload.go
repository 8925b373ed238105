package main

import (
	"log/slog"
	"path/filepath"
	"sync"

	"berth/internal/admin"
	"berth/internal/config"
	"berth/internal/image"
	"berth/internal/preload"
)

// preloads has the directory of images that are to be there, which a reload may exchange for another one.
type preloads struct {
	store *image.Store
	dirty func(path string) // is told of what to make durable
	log   *slog.Logger

	mu     sync.Mutex // guards what follows
	dir    *preload.Directory
	begun  bool // it may take in images
	closed bool
	of     preloadKeys
}

// preloadKeys are the keys that say which directory it is.
type preloadKeys struct {
	path string
	pin  bool
}

// open exchanges the directory for that of a configuration, and has what failed be tried again where it is the same.
// What was taken in before is pinned when it returns.
func (p *preloads) open(cfg *config.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := preloadKeys{cfg.Images.PreloadDir, cfg.Images.PreloadPinned}
	switch {
	case p.closed:
		return
	case keys == p.of:
		if p.dir != nil {
			p.dir.TryAgain()
		}
		return
	case p.dir != nil:
		p.dir.Close()
		p.dir = nil
	}
	p.of = keys
	pin := func(names []string) { image.Pin(p.store, names) }
	if keys.path == "" {
		pin(nil)
		return
	}
	p.dir = preload.Open(preload.Config{
		Path: keys.path, Pin: keys.pin, Store: p.store, SetPins: pin,
		Record: filepath.Join(cfg.ImagesRoot(), "preload", "record"), Dirty: p.dirty, Log: p.log,
	})
	if p.begun {
		p.dir.Start()
	}
}

// start has the images be taken in.
func (p *preloads) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = true
	if p.dir != nil && !p.closed {
		p.dir.Start()
	}
}

func (p *preloads) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.dir != nil {
		p.dir.Close()
	}
}

// problems are what is wrong with the directory.
func (p *preloads) problems() (all []admin.Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dir == nil {
		return nil
	}
	for _, one := range p.dir.Problems() {
		all = append(all, admin.Problem{Path: one.Path, Message: one.Message, Since: one.Since})
	}
	return all
}
