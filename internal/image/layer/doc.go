// Package layer turns one image layer, a tar stream, into an overlay directory.
//
// Unpack needs nothing but the stream: it never looks at the layers below, so all layers of an image unpack at once.
// What it cannot know without them it leaves to Finalize, which runs in layer order: directories that the stream only
// implies (they take owner, mode, times and xattrs from below, or lead through a symlink there), and hard links to
// files that are below.
//
// Unpack is ours rather than containerd's pkg/archive, because that one writes into a mount of the layers below: it
// resolves parents, links and whiteouts there, so layers would have to be applied one after the other. It also keeps no
// record of what it wrote.
//
// A layer is a directory: `fs` is the tree in overlay's own form (a whiteout is a character device 0:0, an opaque
// directory carries trusted.overlay.opaque=y); `manifest` has a line for every entry with what Verify needs to prove it
// later, a hash for each file's content among it; `skeleton` has all of the tar but the files' content, so that Tar can
// give the tar back byte for byte, although no blob is kept; `replaced` has the files that the tar brought and then
// replaced.
//
// No entry leaves the directory: names are walked component by component below a directory descriptor with symlinks
// resolved by us inside the layer, and the kernel is told to stay beneath and to follow none.
package layer

// FS and ManifestFile are the names of what a layer directory holds.
const (
	FS           = "fs"
	ManifestFile = "manifest"
)
