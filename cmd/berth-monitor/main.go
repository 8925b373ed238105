// Command berth-monitor stays with a pod as the parent of its containers. The daemon starts it;
// docs/monitor-protocol.md says how. With the one argument `init` it is the init of a pod with a shared PID namespace;
// with `hold` it does nothing until its standard input ends.
//
// The Go runtime need not look for this process's cgroup limits: it runs on one core, whatever they are.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"
	"strconv"

	"berth/internal/monitor"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "init" {
		monitor.Init()
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "hold" {
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	c, ok := configOf(os.Args[1:])
	if !ok {
		_, _ = os.Stderr.WriteString("berth-monitor is started by the Berth daemon, not by hand\n")
		os.Exit(2)
	}
	if err := monitor.Run(c); err != nil {
		_, _ = os.Stderr.WriteString("berth-monitor: " + err.Error() + "\n")
		os.Exit(1)
	}
}

// configOf reads the arguments, pairs of a name and a value. A name that it does not know it passes over, so that a
// newer daemon may say more.
func configOf(args []string) (monitor.Config, bool) {
	c := monitor.Config{Listener: -1, Lock: -1}
	texts := map[string]*string{"-dir": &c.Dir, "-exits": &c.Exits, "-tracking": &c.Tracking, "-group": &c.Group}
	numbers := map[string]*int{"-listener": &c.Listener, "-lock": &c.Lock}
	for ; len(args) > 1; args = args[2:] {
		if at := texts[args[0]]; at != nil {
			*at = args[1]
		}
		if at := numbers[args[0]]; at != nil {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return c, false
			}
			*at = n
		}
	}
	return c, len(args) == 0 && c.Dir != "" && c.Exits != "" && c.Tracking != "" && c.Group != "" && c.Listener >= 0
}
