package main

import "fmt"

// tables are what the daemon's configuration has besides the usual: what the suite tests when it is on. A plugin of the suite takes
// two seconds for an answer, which is when the default drops it.
func tables(nri string) string {
	return fmt.Sprintf("[nri]\nenable = true\nsocket = %q\nrequest_timeout = \"10s\"\n", nri)
}
