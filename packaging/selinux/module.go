// Package selinux holds the modules that a node's SELinux policy may be given beside its own.
package selinux

import _ "embed"

// Sockets takes from containers the classes of sockets that none of them needs.
//
//go:embed berth-sockets.cil
var Sockets []byte
