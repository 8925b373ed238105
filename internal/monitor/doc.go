// Package monitor is the process that stays with a pod: the parent of its containers.
//
// It starts them through the OCI runtime, holds their standard streams, writes their logs in CRI's format and records
// their exits, with or without a daemon. It is told what to do over a socket (package wire), and needs nothing else of
// the daemon. When it is killed itself, its containers go on, and another monitor started in the same directory takes
// over.
//
// The types to know are Monitor (the process), container (one of the pod's, and its lock), process (how the container's
// first process is reached: native or sandboxed) and output (what it writes, on its way to the log). The files, in the
// order in which they read:
//
//   - the protocol: conn, subscribers; its messages are package wire
//   - the monitor: monitor, reaper, program, ignore, schedule, init
//   - containers: container, create, letgo, exec, groups, owner, oom
//   - processes: process, native, sandboxed
//   - exits: exits
//   - streams: output (who takes), window and journal (what was taken), sink (who is attached), console, drain,
//     gather, pace
//   - logs: log (who writes), logfile, entry, limit
//   - takeover: takeover (containers), recover (logs)
//
// There is one for every pod of a node, so its memory counts: standard library and golang.org/x/sys only, and of those
// what is small. It runs on one core, and one buffer serves all logs.
package monitor
