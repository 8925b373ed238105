// Package network gives pods their networks: it pins their namespaces, attaches them by CNI, and says whether the node
// has a network to attach them to.
//
// What it promises:
//   - Nothing outlives an operation: plugins run through Config.Run, which leaves no process of theirs behind.
//   - Nothing is forgotten: what an ADD is about to do is written down before it runs, so that every ADD, also one that
//     was cut short by a crash, can be followed by its DEL, with the configuration, arguments and result of that ADD.
//   - Nothing waits: Status answers from a snapshot, and a plugin that hangs delays only its own pod.
//
// Operations on one pod must not overlap; those on different pods run in parallel.
//
// It runs the plugins of a chain itself, over pkg/invoke of the CNI project. libcni, which reads the configuration
// here, would write its cache after the whole chain only: an ADD that a crash has cut short would leave no record to
// undo it by.
package network
