// Command berth-unpack unpacks one layer of an image, confined to that layer's directory. The daemon starts it;
// docs/unpacking.md says how.
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
