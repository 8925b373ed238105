// Package image is the store of container images: it pulls, imports, lists, removes and checks them.
//
// An image is a record and the layers it names. A pull resolves the reference with the caller's own credentials,
// proves manifest and config, and then fetches and unpacks all missing layers at once, each straight from the network
// into its own overlay directory (package layer). A layer gets its name by a rename, and only when the digest of what
// was fetched and the diff id of what it inflates to are proven; a record is written when all its layers are there.
// So whatever a crash leaves half done lies under ingest/, where the next Open collects it.
//
// Layers are shared. One that is the same over anything is named by the blob it came as; one that had to be finalized
// over those below it, or was unpacked by a process that had some of them before, is named by its blob and by those.
// Whoever pulls asks the registry with credentials of their own, and what is there is used only for a repository that
// has served it: others fetch it as well, and prove it (possession.go). Two pulls from one repository that want the
// same layer at once fetch it once. The same layer over other ones is made from its own tar (rebuild.go); the same
// image in other blobs is united by it (packings.go).
//
// Reads (Get, List, Usage, LayerDirs) answer from an immutable snapshot and never wait. A change makes the next
// snapshot from the one before and copies what it touches, so that it costs the same in a store of any size. Use
// holds an image's layers against Sweep until the caller's own record names them; it waits for no change either.
//
// An image is usable at once and synced behind. What was not durable yet when another boot finds it is dropped.
//
// Store is what the daemon calls. It wires rooms that know nothing of each other, each of which a test builds alone:
// catalog (records and layers, and the one lock of both), archive (tar archives), document (manifests and configs),
// remote (registries), layer and unpack (from a blob to a directory), slots (fair downloads). What is left here is the
// pipeline, which fetches, proves and unpacks the layers of an image: one layerRequest is one layer of an image to be
// had.
//
// The files, in the order in which they read:
//
//   - the store: store, settings, remove, verify, detail, errors, floor
//   - fetching: pull, manifest, platform, unchanged, layers, layerid, singleflight, registry, possession, blob,
//     download, rest, spool, rebuild, packings, repair
//   - archives: import, export
//   - the unpacker's client: unpacker, unpacker_process, spares, turns, inflate, detached
//
// Files below the root, all described in docs/storage-format-images.md:
//
//	records/<hex of the image id>   what an image is
//	layers/<layer id>/              record, manifest and fs of a layer
//	ingest/<n>/                     work in flight; nothing there survives an Open
//	aside/<layer id>.<n>/           what a repair has replaced and a container may have mounted
package image
