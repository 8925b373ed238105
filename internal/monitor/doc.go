// Package monitor is the process that stays with a pod: the parent of its containers.
//
// It starts them through the OCI runtime, holds their standard streams, writes their logs in CRI's format and records
// their exits, with or without a daemon. It is told what to do over a socket (package wire), and needs nothing else of
// the daemon. When it is killed itself, its containers go on, and another monitor started in the same directory takes
// over.
//
// Its parts, by file:
//
//   - the process: monitor, reaper, program, ignore, init
//   - containers: container, create, letgo, kill, exec, guest, owner, oom
//   - streams: output (who takes), window and journal (what was taken), sink (who is attached), console, drain
//   - logs: log (who writes), logfile, entry
//   - takeover: takeover (containers), recover (logs)
//   - the protocol: conn
//
// There is one for every pod of a node, so its memory counts: standard library and golang.org/x/sys only, and of those
// what is small. It runs on one core, and one buffer serves all logs.
package monitor
