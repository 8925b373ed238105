// Package sandbox holds what is known of a pod and its containers, as values: nothing here has a lock, a goroutine or
// an effect on the host.
//
// Record and Container are that knowledge, State and its tables say what may follow what, Layout names the places on
// the host, by ids alone. A Record is never changed once others can see it: Clone, Edit and MoveTo make the next one of
// it.
//
// Read record.go first, then state.go and paths.go. outcome.go is how a process ended, signal.go CRI's numbers of
// signals, errors.go what the packages around pods say when something cannot be done.
package sandbox
