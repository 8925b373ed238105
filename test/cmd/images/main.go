// Command images builds the images of Debian packages that tests compare and run, unless they are in their cache. It takes root,
// debootstrap and a Debian mirror.
package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"berth/test/fixture"
)

func main() {
	if _, err := os.Stat(fixture.DebianCache()); err == nil {
		return
	}
	var log io.Writer = io.Discard
	if len(os.Args) > 1 && os.Args[1] == "-v" {
		log = os.Stderr
	}
	fmt.Printf("images: building images of Debian packages into %s, about two minutes\n", fixture.DebianCache())
	begin := time.Now()
	if err := fixture.BuildDebian(log); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
	fmt.Printf("images: built in %s\n", time.Since(begin).Round(time.Second))
}
