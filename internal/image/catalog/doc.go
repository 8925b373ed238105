// Package catalog holds what the image store has: the records of images and layers, on the disk and in memory, and the
// one lock of both.
//
// A Catalog is changed by its verbs: KeepLayer and ReplaceLayer rename a layer into place, Commit records an image
// under its names, Forget removes a record. Readers take a Snapshot, an Index that never changes, and never wait.
// Use and HoldImage hold layers by a lease, so that no sweep takes them meanwhile.
//
// A Sweeper removes the layers that no image and no container uses. A Syncer makes durable what was committed: it syncs
// the file system once for a batch, and says so in the records only then. What was not durable yet when another boot
// opens the catalog is dropped. A Checker compares layers with what their records promise.
//
// The Disk knows where all of it is, and hands out directories in ingest/ for work in flight.
//
// The files, in the order in which they read: records, disk, image, inventory, index, shards, catalog, lease, commit,
// load, sync, sweep, aside, check.
package catalog
