// Package image is the store of container images: it pulls, imports, lists, removes and checks them.
//
// An image is a record and the layers it names. A pull resolves the reference with the caller's own credentials,
// verifies manifest and config, and then fetches and unpacks all missing layers in parallel, each straight from the
// network into its own overlay directory (package layer). When the digest of the blob and the diff id of its tar are
// verified, the directory is renamed to the layer's id. When all layers are there, the record of the image is written.
// So what a crash leaves unfinished is under ingest/, and the next Open removes it.
//
// Images share layers. The id of a layer that is the same over any others is made of its blob. The id of a layer that
// was finalized over those below it, or unpacked by a process that had some of them before, is made of its blob and of
// theirs. A pull uses a layer of the store only if its own repository has served the blob before; otherwise it fetches
// the blob to prove that the repository has it (possession.go). Pulls from one repository that need a layer at the same
// time fetch it once. A layer that is needed over other layers too is made again from its own tar (rebuild.go). One
// image that comes in different blobs stays one image (packings.go).
//
// Reads (Get, List, Usage, LayerDirs) answer from an immutable snapshot and never wait. A change derives the next
// snapshot from the last and copies only what it touches, so its cost does not grow with the store. Use keeps Sweep
// from an image's layers until the caller's own record names them; it does not wait for changes either.
//
// An image is usable as soon as its record is written, and is synced in the background. After a reboot, images that
// were not durable are dropped.
//
// Store is what the daemon calls. It connects packages that do not depend on each other: catalog (records and layers,
// and the lock of both), archive (tar archives), document (manifests and configs), remote (registries), layer and
// unpack (from a blob to a directory), slots (fair downloads). This package itself has the pipeline, which fetches,
// verifies and unpacks the layers of an image; a layerRequest asks it for one layer.
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
