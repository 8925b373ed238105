package main

import "fmt"

// tables are what the daemon's configuration has besides the usual. NRI is on by itself for the default root only,
// and a daemon of a test has another. All else is as it is by default.
func tables(nri string) string {
	return fmt.Sprintf("[nri]\nenable = true\nsocket = %q\n", nri)
}
