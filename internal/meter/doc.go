// Package meter tells what pods and containers use, and watches those that come to their limits.
//
// Meter measures, and Config has what it needs of the rest of the daemon: the records of pods, their paths and their
// cgroups. Each of its parts has its own state and lock: StorageWatch knows which containers have written all that they
// may, StrayWatch which have files that their project does not count, LogWatch what was dropped of logs.
//
// Read meter.go first: cgroups and interfaces, read when they are asked for, and rates. usage.go reads writable layers,
// storage.go, stray.go and logs.go are the parts.
package meter
