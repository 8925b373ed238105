// Package archive reads and writes images as tar archives: OCI image layouts, and what `docker save` writes.
//
// Read keeps the files of an archive and says what it lists; who admits an image opens its blobs and proves them, as it
// would those of a registry. Write puts the layers of images together again, byte for byte.
//
// The files, in the order in which they read: read, contents, form, write.
package archive
