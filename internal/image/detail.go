package image

import "github.com/opencontainers/go-digest"

// Layer describes one layer of an image.
type Layer struct {
	ID     string        // in this store; images with the same id share it
	DiffID digest.Digest // of the plain tar
	Blob   digest.Digest // of the fetched blob
	Size   int64         // of the fetched blob, in bytes
	Bytes  uint64        // on disk
	Inodes uint64
	// Durable reports whether the layer would survive a power cut.
	Durable bool
}

// LayersOf describes an image's layers, the lowest first. It answers from memory and never waits.
func (s *Store) LayersOf(img Image) []Layer {
	now := s.catalog.Snapshot()
	out := make([]Layer, 0, len(img.LayerRefs))
	for _, ref := range img.LayerRefs {
		rec := now.Layer(ref.ID)
		out = append(out, Layer{ref.ID, ref.DiffID, ref.Blob, ref.Size, rec.Bytes, rec.Inodes, rec.Durable})
	}
	return out
}
