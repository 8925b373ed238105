package image

import "github.com/opencontainers/go-digest"

// Layer is what there is to know about one layer of an image.
type Layer struct {
	ID     string        // in this store; images with the same id share it
	DiffID digest.Digest // of the plain tar
	Blob   digest.Digest // of what was fetched
	Size   int64         // of what was fetched, in bytes
	Bytes  uint64        // on disk
	Inodes uint64
	// Durable says that the layer would survive a power cut.
	Durable bool
}

// LayersOf tells of an image's layers, the lowest first. Nothing is walked, and it never waits.
func (s *Store) LayersOf(img Image) []Layer {
	now := s.catalog.Snapshot()
	out := make([]Layer, 0, len(img.LayerRefs))
	for _, ref := range img.LayerRefs {
		rec := now.Layer(ref.ID)
		out = append(out, Layer{ref.ID, ref.DiffID, ref.Blob, ref.Size, rec.Bytes, rec.Inodes, rec.Durable})
	}
	return out
}
