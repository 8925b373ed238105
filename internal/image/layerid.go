package image

import (
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"berth/internal/image/catalog"
)

// Layer ids tell what a layer was made of: b and the digest of the blob, as it was fetched, for a layer that is the
// same over anything; s for one that was finalized, or unpacked by a process that had layers below it before, by its
// blob and the ids of the layers below it. So what unpacks a blob can spoil that layer and those over it alone.
// Releases before this one named layers by what they unpack to: d and the diff id, or c and the chain id. Those serve
// on for the blobs that the records of images give for them.

// blobID is the id of a layer that is the same over anything.
func blobID(w layerRequest) string { return "b" + contentName(w) }

// finalizedID is the id of a layer that was finalized over a stack of that name.
func finalizedID(w layerRequest, stack string) string {
	return "s" + digest.FromString(contentName(w)+" "+stack).Encoded()
}

// stackName names layers that lie over each other, the lowest first.
func stackName(ids []string) (name string) {
	for _, id := range ids {
		name = stackOf(name, id)
	}
	return name
}

// stackOf is the name of a stack with one more layer on top.
func stackOf(name, id string) string { return digest.FromString(name + " " + id).Encoded() }

// contentName names a blob in ids. A blob of which images promise diff ids of different algorithms is a layer for each.
func contentName(w layerRequest) string {
	name := idHex(w.desc.Digest)
	if alg := w.diffID.Algorithm(); alg != digest.SHA256 {
		name += "-" + alg.String()
	}
	return name
}

// idHex is the hex of a digest, with the algorithm before it when it is not the usual one.
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

// standing finds the layer for w that is there, "" when none is. lowers are what a finalized one was finalized over.
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

// standingBelow finds the layers of a stack and its name, unless one of them is not there.
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

// standingOver finds the layer for w that is the same over anything or, where the layers below and the name of their
// stack are known, was finalized over them. It looks at the images that have the same tar alone.
func standingOver(i *catalog.Index, w layerRequest, lowers []string, stack string, known bool) string {
	fits := func(id string) bool {
		return i.Has(id) && i.Layer(id).DiffID == w.diffID
	}
	if known { // this one first: those above may be finalized over it
		if id := finalizedID(w, stack); fits(id) {
			return id
		}
	}
	if id := blobID(w); fits(id) {
		return id
	}
	if len(i.LayersFrom(w.diffID)) == 0 {
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

// madeOf reports whether the layer of an image is that of the blob in w. One that is named by its tar is also that of
// the uncompressed blob, unless it was fetched again since.
func madeOf(i *catalog.Index, ref catalog.LayerRef, w layerRequest) bool {
	return ref.Blob == w.desc.Digest || w.desc.Digest == w.diffID && digestedHere(i, ref.ID)
}

// siblings are the layers but one that were unpacked from the blob in w and can give its tar back.
func siblings(i *catalog.Index, w layerRequest, except string) []string {
	of := map[string]bool{} // layers that an image has for this blob
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
