package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/config"
	"berth/internal/helper"
	"berth/internal/image"
	"berth/internal/image/layer"
	"berth/internal/image/unpack"
	"berth/internal/limit"
)

// unpackGroup is the group of all unpackers, below the instance's.
const unpackGroup = "unpack"

// pageCache is what the files that unpackers write may keep in memory until they are on the disk.
const pageCache = 1 << 30

// openCrew makes what unpackers run in, and ends those of an earlier daemon, of which one that hangs in the kernel
// stays in its group. The result is nil where the daemon itself unpacks.
func openCrew(cfg *config.Config, g *groups, log *slog.Logger) (*helper.Crew, error) {
	base := filepath.Dir(filepath.Dir(g.helpers.Root))
	name, err := cgroup.Vacate(base, filepath.Join(g.instance, unpackGroup))
	if err != nil {
		log.Warn("what unpacked layers for an earlier daemon does not end; the next ones have another cgroup", "name", name,
			"error", err)
	}
	if cfg.Images.Unpack == config.UnpackInDaemon {
		return nil, nil
	}
	if name == "" {
		return nil, err
	}
	program, err := cfg.UnpackerPath()
	if err != nil {
		return nil, err
	}
	crew := &helper.Crew{Program: program, Capabilities: unpack.Capabilities(), Nice: 10, Slack: unpack.TimerSlack}
	crew.Group, crew.Tasks, err = cgroup.Bounded(base, name, base != g.tracking, unpackBounds(cfg))
	if crew.Group == "" {
		return nil, err
	}
	if err != nil {
		log.Warn("a bound of all unpackers together does not hold: their cgroup does not take it, and those of each remain",
			"group", crew.Group, "error", err)
	}
	return crew, nil
}

// asCrew is the crew for the image store, which takes a nil one for none.
func asCrew(c *helper.Crew) image.Crew {
	if c == nil {
		return nil
	}
	return c
}

// unpackBounds are those of all unpackers together: there are as many as layers are fetched at once, and one that
// finalizes for each pull. On a tmpfs what they write is memory, however little they need: there the size of the tmpfs
// is the bound.
func unpackBounds(cfg *config.Config) cgroup.Bounds {
	i := cfg.Images
	lim := layer.Limits{Bytes: i.MaxLayerBytes, Entries: i.MaxLayerEntries, Memory: i.MaxLayerMemoryBytes}
	many := 2 * int64(i.Downloads(cores()))
	b := cgroup.Bounds{Weight: 25, Processes: int(64 * many)}
	b.Memory = many*unpack.MemoryFor(lim) + unpack.WindowMemory(limit.ZstdWindow.Limit) + pageCache
	if onTmpfs(cfg.ImagesRoot()) {
		b.Memory = 0
	}
	return b
}

// closeCrew ends the unpackers and removes their group, when the image store is closed. The thread that was in it
// takes a moment.
func closeCrew(crew *helper.Crew) {
	if crew == nil {
		return
	}
	crew.Close()
	for end := time.Now().Add(tidyTimeout); ; time.Sleep(time.Millisecond) {
		left := false
		for _, dir := range append([]string{crew.Group}, crew.Tasks...) {
			left = errors.Is(os.Remove(dir), unix.EBUSY) || left
		}
		if !left || time.Now().After(end) {
			return
		}
	}
}
