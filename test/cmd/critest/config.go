package main

import "fmt"

// tables are what the daemon's configuration has besides the usual: what the suite tests when it is on.
func tables(nri string) string {
	return fmt.Sprintf("[nri]\nenable = true\nsocket = %q\n", nri)
}
