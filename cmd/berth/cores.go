package main

import "runtime"

// cores is how many cores the daemon may use.
func cores() int { return runtime.GOMAXPROCS(0) }
