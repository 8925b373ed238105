// Command berth-unpack unpacks layers of an image, one after the other, confined to the directory of each. The daemon
// starts it; docs/unpacking.md says how.
//
// The Go runtime need not look for this process's cgroup limits: the daemon says how many threads it is to have.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"

	"berth/internal/image/unpack"
)

func main() { os.Exit(unpack.Main(os.Args[1:])) }
