// Package layer turns one image layer, a tar stream, into an overlay directory.
//
// Unpack reads the stream alone and ignores the layers below, so all layers of an image are unpacked in parallel.
// Finalize then runs once per layer, in layer order, and does what depends on the layers below. It gives implied
// directories (those that the stream has files in but no entry for) the owner, mode, times and xattrs of the directory
// below, or moves their files to where a symlink below leads. It makes the hard links whose target is in a layer below.
//
// Berth has its own Unpack because containerd's pkg/archive writes into a mount of the layers below: it resolves
// parents, links and whiteouts in that mount, so layers have to be applied one after another. It also records nothing
// of what it writes.
//
// A layer directory has up to four parts:
//   - `fs` is the tree in overlay's form: a whiteout is a character device 0:0, and an opaque directory has the
//     attribute trusted.overlay.opaque=y;
//   - `manifest` has a line for each entry with its metadata and the hash of its content. Verify compares the tree with
//     it;
//   - `skeleton` is the tar-split metadata: the whole tar without the content of files. Tar puts the tar together again
//     from it, byte for byte, so the blob of the layer need not be kept;
//   - `replaced` has the files that one entry of the tar brought and a later entry replaced.
//
// Entries cannot write outside the directory. Unpack walks their names component by component below a directory
// descriptor and resolves symlinks inside the layer itself; RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS have the kernel
// refuse what would leave it.
//
// Read unpack.go first (entries become files), then dirs.go (the tree of directories), finalize.go with relocate.go and
// far.go (what depends on the layers below), tarsplit.go with assemble.go (the tar again), verify.go. Unpack and
// Finalize also run in a process without privileges: grants.go lists what such a process leaves to Grant.
package layer

// FS and ManifestFile are names in a layer directory.
const (
	FS           = "fs"
	ManifestFile = "manifest"
)
