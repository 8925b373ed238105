package chaos

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// class is what a process is to the runtime that is struck.
type class string

const (
	daemon   class = "daemon"
	monitor  class = "monitor"
	unpacker class = "unpacker"
	runtime  class = "runtime"
	plugin   class = "plugin"
	registry class = "registry"
	other    class = ""
)

// process is one that runs.
type process struct {
	pid  int
	argv []string
}

// processes are those of this process namespace.
func processes() []process {
	entries, _ := os.ReadDir("/proc")
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p := processOf(pid); len(p.argv) > 0 {
			all = append(all, p)
		}
	}
	return all
}

func processOf(pid int) process {
	cmdline, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	cmdline = bytes.TrimRight(cmdline, "\x00")
	if len(cmdline) == 0 {
		return process{pid: pid}
	}
	return process{pid, strings.Split(string(cmdline), "\x00")}
}

// program is what a process says it runs. A runtime that executes itself from another file, as crun before 1.19 does,
// goes on to say so here, while /proc/<pid>/exe shows a copy.
func (p process) program() string {
	if len(p.argv) == 0 {
		return ""
	}
	return filepath.Base(p.argv[0])
}

// inContainer says whether a process is in a process namespace below this one: a container's own, or one that is
// about to become that and still has the command line of the runtime that made it.
func (p process) inContainer() bool {
	status, _ := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/status")
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			return len(strings.Fields(ids)) > 1
		}
	}
	return true // it has gone
}

// classOf says what a process is. Programs that are struck by their place in the stage, the daemon and the registry,
// are told by their id.
func (s *stage) classOf(p process) class {
	if p.program() == filepath.Base(os.Args[0]) {
		return other // not yet what it is to become
	}
	switch p.pid {
	case s.daemon.pid():
		return daemon
	case s.registry.pid():
		return registry
	}
	c := classes[p.program()]
	if c == runtime && len(p.argv) > 1 && p.argv[1] == "init" {
		return other // the beginning of a container, or of an exec: its death is the container's
	}
	if c != other && p.inContainer() {
		return other
	}
	return c
}

// classes are what programs are, by their name.
var classes = map[string]class{
	"berth-monitor": monitor, "containerd-shim-runc-v2": monitor, "conmon": monitor,
	"berth-unpack": unpacker, "igzip": unpacker, "storage-applyLayer": unpacker, "storage-untar": unpacker,
	"runc": runtime, "crun": runtime, "pinns": runtime,
	"bridge": plugin, "portmap": plugin, "host-local": plugin, "iptables": plugin, "ip6tables": plugin,
}

var id = regexp.MustCompile(`[0-9a-f]{64}`)

// containerOf is the container that a runtime is at work on: its id ends the command line.
func containerOf(p process) string {
	all := id.FindAllString(strings.Join(p.argv, " "), -1)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

// monitored is what a monitor is of, by its command line: a pod, or a container where each has its own.
func monitored(p process) string { return id.FindString(strings.Join(p.argv, " ")) }
