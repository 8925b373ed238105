// Command berth is both the daemon ("berth serve") and the command line for people, which speaks to a daemon's socket.
package main

import (
	"os"

	"berth/internal/cli"
)

// version is set at link time.
var version = "unknown"

func main() {
	root := cli.New(version)
	cli.AddToNode(root, serveCommand())
	root.AddCommand(freeUnitCommand())
	addManual(root)
	os.Exit(cli.Execute(root))
}
