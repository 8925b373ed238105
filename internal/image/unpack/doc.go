// Package unpack is the program berth-unpack, which unpacks or finalizes layers, and what it and the daemon say to
// each other.
//
// The daemon gives it a blob through a pipe and the layer's directory as an open descriptor. Before it reads the first
// byte it has confined itself: the directory is its root, a filter leaves it the system calls of its work, and it can
// neither fork nor run a program. It was born without the capabilities that reach beyond files. What it says is
// believed no more than the blob is: the daemon digests the blob itself, and checks and makes what takes privileges.
//
// Small layers follow each other in a process, with descriptors that come by the socket. Others have one of their own,
// so it must start fast: the package imports neither gRPC nor anything else with
// much to initialise.
package unpack
