package image

import (
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"berth/internal/image/catalog"
)

// The id of a layer tells what it was made from. A layer that is the same over any others has b and the digest of its
// blob. A layer that was finalized, or unpacked by a process that had layers below it before, has s and a digest of its
// blob and of the ids below. So an image that subverts an unpacker can spoil only layers of its own blobs, and layers
// over them. Earlier releases named layers by their content: d and the diff id, or c and the chain id. Such layers are
// still used for the blobs for which the records of images name them.

// blobID returns the id of a layer that is the same over any others.
func blobID(w layerRequest) string { return "b" + contentName(w) }

// finalizedID returns the id of a layer that was finalized over the stack of that name.
func finalizedID(w layerRequest, stack string) string {
	return "s" + digest.FromString(contentName(w)+" "+stack).Encoded()
}

// stackName returns the name of a stack of layers, the lowest first.
func stackName(ids []string) (name string) {
	for _, id := range ids {
		name = stackOf(name, id)
	}
	return name
}

// stackOf returns the name of a stack with one more layer on top.
func stackOf(name, id string) string { return digest.FromString(name + " " + id).Encoded() }

// contentName returns the part of an id that stands for the blob. If images have diff ids of different algorithms for
// one blob, there is a layer for each algorithm. A blob that is a file has a layer for each path.
func contentName(w layerRequest) string {
	name := idHex(w.desc.Digest)
	if alg := w.algorithm(); alg != digest.SHA256 {
		name += "-" + alg.String()
	}
	if w.part.Path == "" {
		return name
	}
	how := "-f"
	if w.part.MayBeTar {
		how = "-t"
	}
	return name + how + digest.FromString(w.part.Path).Encoded()
}

// idHex returns the hex of a digest, after the algorithm if that is not the usual one.
func idHex(d digest.Digest) string {
	if d.Algorithm() == digest.SHA256 {
		return d.Encoded()
	}
	return strings.ReplaceAll(d.String(), ":", "-")
}

// isFinalized reports whether a layer fits only over the layers that it was finalized over.
func isFinalized(id string) bool { return id != "" && (id[0] == 's' || id[0] == 'c') }

// isByTar reports whether an earlier release named a layer, by the tar that it had unpacked and digested itself.
func isByTar(id string) bool { return id != "" && (id[0] == 'd' || id[0] == 'c') }

// standing returns the store's layer for w, or "". If it is a finalized one, lowers are the layers below it.
func standing(i *catalog.Index, w layerRequest) (id string, lowers []string) {
	lowers, known := w.lowers, true
	name := stackName(lowers)
	if lowers == nil {
		lowers, name, known = standingBelow(i, w.below)
	}
	if id = standingOver(i, w, lowers, name, known); !isFinalized(id) {
		lowers = nil
	}
	return id, lowers
}

// standingBelow returns the layers of a stack and its name; all is false if one of them is missing.
func standingBelow(i *catalog.Index, below []layerRequest) (ids []string, name string, all bool) {
	for _, w := range below {
		id := standingOver(i, w, ids, name, true)
		if id == "" {
			return nil, "", false
		}
		ids, name = append(ids, id), stackOf(name, id)
	}
	return ids, name, true
}

// standingOver returns the store's layer for w: one that is the same over any others or, if the layers below and the
// name of their stack are known, one that was finalized over them. It looks only at images that have the same tar.
func standingOver(i *catalog.Index, w layerRequest, lowers []string, stack string, known bool) string {
	fits := func(id string) bool {
		return i.Has(id) && (w.diffID == "" || i.Layer(id).DiffID == w.diffID)
	}
	if known { // it comes first because the layers above it may have been finalized over it
		if id := finalizedID(w, stack); fits(id) {
			return id
		}
	}
	if id := blobID(w); fits(id) {
		return id
	}
	if w.diffID == "" || len(i.LayersFrom(w.diffID)) == 0 {
		return ""
	}
	for img := range i.ImagesFrom(w.diffID) {
		for n, ref := range img.LayerRefs {
			over := !isFinalized(ref.ID) || known && slices.Equal(img.Layers[:n], lowers)
			if ref.DiffID == w.diffID && over && fits(ref.ID) && madeOf(i, ref, w) {
				return ref.ID
			}
		}
	}
	return ""
}

// madeOf reports whether an image's layer was made from the blob in w. A layer that is named by its tar also counts as
// made from the uncompressed blob, unless it has been fetched again since.
func madeOf(i *catalog.Index, ref catalog.LayerRef, w layerRequest) bool {
	return ref.Blob == w.desc.Digest || w.desc.Digest == w.diffID && digestedHere(i, ref.ID)
}

// siblings returns the other layers that were unpacked from the blob in w and have its tar-split metadata.
func siblings(i *catalog.Index, w layerRequest, except string) []string {
	of := map[string]bool{} // the layers that images have for this blob
	for img := range i.ImagesFrom(w.diffID) {
		for _, ref := range img.LayerRefs {
			if ref.Blob == w.desc.Digest {
				of[ref.ID] = true
			}
		}
	}
	var out []string
	for _, id := range i.LayersFrom(w.diffID) {
		if l := i.Layer(id); l.TarSplit && id != except && (l.Blob == w.desc.Digest || of[id]) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}
