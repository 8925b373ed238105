// Package session reaches into running containers for clients: commands with and without a client at their streams,
// attachments, sizes of terminals, logs that are opened anew, and where a pod's ports are.
//
// Sessions finds pods through Finder and runs commands through Runtime. It knows neither how pods are made nor which
// protocols clients speak. Session is a command with streams, Output what one without has left.
//
// Read sessions.go first, then exec.go and session.go. output.go bounds what is kept of outputs, spec.go is the spec
// that a container has now.
package session
