package image

import (
	"context"

	"berth/internal/image/catalog"
	"berth/internal/image/document"
	"berth/internal/image/layer"
	"berth/internal/room"
)

// minFreeKey is the key of the configuration that says what must stay free of the file system of the images. The
// pods' writable layers and records are most often on the same one.
const minFreeKey = "images.min_free_percent"

func (s *settings) floor() room.Floor { return room.Floor{Percent: s.MinFreePercent, Key: minFreeKey} }

// limits are those of one layer.
func (s *settings) limits() layer.Limits {
	return layer.Limits{
		Bytes: s.MaxLayerBytes, Entries: s.MaxLayerEntries, Memory: s.MaxLayerMemoryBytes, Floor: s.floor(),
	}
}

// enough refuses work before its first byte is fetched when less is free than must stay free. It first removes unused
// layers.
func enough(ctx context.Context, s *pipeline) error {
	floor := s.settings().floor()
	if floor.Check(s.disk.Root, 0, catalog.ToMakeRoom) == nil {
		return nil
	}
	if err := s.sweeper.Sweep(ctx); err != nil {
		s.cfg.Logger.Warn("sweep of unused layers, for the disk is nearly full", "error", err)
	}
	return floor.Check(s.disk.Root, 0, catalog.ToMakeRoom)
}

// gauge watches the store's file system while something is written there.
func gauge(s *pipeline) *room.Gauge {
	return &room.Gauge{Floor: s.settings().floor(), Dir: s.disk.Root, Remedy: catalog.ToMakeRoom}
}

// documentLimits bound what a manifest may ask for.
func (s *settings) documentLimits() document.Limits {
	return document.Limits{Layers: s.MaxLayers, Bytes: s.MaxImageBytes}
}
