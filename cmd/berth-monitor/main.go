// Command berth-monitor stays with a pod as the parent of its containers. The daemon starts it; docs/monitor-protocol.md
// says how. With the one argument `init` it is the init of a pod with a shared PID namespace.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"berth/internal/monitor"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "init" {
		monitor.Init()
		return
	}
	var c monitor.Config
	flag.StringVar(&c.Dir, "dir", "", "the pod's run directory")
	flag.StringVar(&c.Exits, "exits", "", "the directory for exits that no daemon was told of")
	flag.StringVar(&c.Tracking, "tracking", "", "mount point of the cgroup2 hierarchy")
	flag.StringVar(&c.Group, "group", "", "the cgroup below it for this instance's containers")
	flag.IntVar(&c.Listener, "listener", -1, "descriptor of a listening socket")
	flag.IntVar(&c.Lock, "lock", -1, "descriptor that holds the lock of the directory")
	flag.Parse()
	if c.Dir == "" || c.Exits == "" || c.Tracking == "" || c.Group == "" || c.Listener < 0 {
		fmt.Fprintln(os.Stderr, "berth-monitor is started by the Berth daemon, not by hand")
		os.Exit(2)
	}
	// Signals to a whole session or group are meant for others: a monitor ends when its pod does. They are caught, not
	// ignored, since what is ignored stays so in every program that is started from here.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	if err := monitor.Run(c); err != nil {
		fmt.Fprintln(os.Stderr, "berth-monitor:", err)
		os.Exit(1)
	}
}
