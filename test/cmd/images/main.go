// Command images builds the images of Debian packages that tests compare and run, unless they are in their cache. It
// takes root, debootstrap and a Debian mirror.
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"berth/test/fixture"
)

func main() {
	var log io.Writer = io.Discard
	if len(os.Args) > 1 && os.Args[1] == "-v" {
		log = os.Stderr
	}
	build("images of Debian packages", "about two minutes", fixture.DebianCache(), log, fixture.BuildDebian)
	if slices.Contains(fixture.ProbeArchitectures(), "386") {
		build("a 32-bit image", "some seconds", fixture.I386Cache(), log, fixture.BuildI386)
	}
}

func build(what, takes, cache string, log io.Writer, make func(io.Writer) error) {
	if _, err := os.Stat(cache); err == nil {
		return
	}
	fmt.Printf("images: building %s into %s, %s\n", what, cache, takes)
	begin := time.Now()
	if err := make(log); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
	fmt.Printf("images: built in %s\n", time.Since(begin).Round(time.Second))
}
