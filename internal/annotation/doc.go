// Package annotation owns the annotations by which a pod or a container asks Berth for something: their keys, what each
// means, which package asks for it, and how its value is read.
//
// There is a function for each request, such as ShmSize, that is given all annotations and returns the value asked for.
// Bounds are what the runtime handler says of the same. Rows is the table of all keys, which docs/annotations.md shows;
// test/rules checks that no other package spells a key of it, and that each is read where the table says.
//
// Read table.go first, then limits.go (what containers may use), network.go (what plugins are told) and container.go
// (what CRI has no words for).
package annotation
