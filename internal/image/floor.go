package image

import (
	"context"

	"berth/internal/diskspace"
	"berth/internal/image/catalog"
	"berth/internal/image/document"
	"berth/internal/image/layer"
	"berth/internal/limit"
)

// minFreeKey is the configuration key of the space that must stay free on the images' file system. Usually the pods'
// writable layers and records are on the same one.
const minFreeKey = "images.min_free_percent"

func (s *settings) floor() diskspace.Floor {
	return diskspace.Floor{Percent: s.MinFreePercent, Key: minFreeKey}
}

// limits returns the limits of one layer.
func (s *settings) limits() layer.Limits {
	return layer.Limits{
		Bytes: s.MaxLayerBytes, Entries: s.MaxLayerEntries, Memory: s.MaxLayerMemoryBytes, Floor: s.floor(),
	}
}

// enough returns an error if less space is free than must stay free once need bytes more are written, so that work is
// refused before it fetches anything. If space is short, it removes unused layers first.
func enough(ctx context.Context, s *pipeline, need int64) error {
	floor := s.settings().floor()
	if floor.Check(s.disk.Root, need, catalog.ToMakeRoom) == nil {
		return nil
	}
	if err := s.sweeper.Sweep(ctx); err != nil {
		s.logger.Warn("sweep of unused layers, for the disk is nearly full", "error", err)
	}
	return floor.Check(s.disk.Root, need, catalog.ToMakeRoom)
}

// gauge returns a gauge of the store's file system for one operation that writes to it.
func gauge(s *pipeline) *diskspace.Gauge {
	return &diskspace.Gauge{Floor: s.settings().floor(), Dir: s.disk.Root, Remedy: catalog.ToMakeRoom}
}

// documentLimits returns the bounds of what a manifest may ask for.
func (s *settings) documentLimits() document.Limits {
	return document.Limits{Layers: s.MaxLayers, Bytes: s.MaxImageBytes}
}

// documents bounds what the documents of a pull or an archive have in all: where the keys allow a larger manifest and
// config, as much as these.
func (s *settings) documents() limit.Budget {
	return limit.Documents.At(max(limit.Documents.Limit, s.MaxManifestBytes+s.MaxConfigBytes))
}
