// Package footprint says what a container runtime itself costs a machine while pods run: the memory, threads, processor
// time and wake-ups of its daemon and of every helper process, and nothing of the containers' own programs.
package footprint

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Group is the processes of one runtime.
type Group struct {
	Daemon  int
	Helpers []int
}

// Search says how the processes of a runtime are known.
type Search struct {
	Daemon int
	// Mark is the name of a variable that every container's program has in its environment, whoever started it; its
	// value names the runtime.
	Mark, Runtime string
	// Pods are ids; what has one on its command line is a helper.
	Pods []string
}

type process struct {
	parent  int
	cmdline []byte
	mark    string // "" for what is no container's program
}

type table map[int]process

// Find finds the helpers of a daemon: what descends from it, the ancestors of its containers (monitors, shims) with
// their other children (pause processes), and what names one of its pods on its command line.
func (s Search) Find() (Group, error) {
	all, err := s.scan()
	if err != nil {
		return Group{}, err
	}
	chosen := map[int]bool{s.Daemon: true}
	for pid, p := range all {
		if p.mark == s.Runtime {
			all.addAncestors(p.parent, chosen)
		}
		if p.mark == "" && namesAny(p.cmdline, s.Pods) {
			chosen[pid] = true
		}
	}
	own := map[int]bool{1: true}
	all.addAncestors(os.Getpid(), own)
	for pid := range own {
		delete(chosen, pid)
	}
	all.addDescendants(chosen)
	g := Group{Daemon: s.Daemon}
	for pid := range chosen {
		if pid != s.Daemon {
			g.Helpers = append(g.Helpers, pid)
		}
	}
	return g, nil
}

// addAncestors adds pid and its ancestors, without the machine's init and without containers' programs.
func (t table) addAncestors(pid int, to map[int]bool) {
	for pid > 1 && !to[pid] {
		if t[pid].mark == "" {
			to[pid] = true
		}
		pid = t[pid].parent
	}
}

// addDescendants adds what descends from the chosen, but no container's program and nothing that it started.
func (t table) addDescendants(chosen map[int]bool) {
	for grown := true; grown; {
		grown = false
		for pid, p := range t {
			if chosen[p.parent] && !chosen[pid] && p.mark == "" {
				chosen[pid], grown = true, true
			}
		}
	}
}

func namesAny(cmdline []byte, ids []string) bool {
	for _, id := range ids {
		if bytes.Contains(cmdline, []byte(id)) {
			return true
		}
	}
	return false
}

func (s Search) scan() (table, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	all := table{}
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if p, ok := s.read(dir); ok {
			all[pid] = p
		}
	}
	if _, ok := all[s.Daemon]; !ok {
		return nil, fmt.Errorf("daemon %d of %s is not running", s.Daemon, s.Runtime)
	}
	return all, nil
}

// read is not ok for a process that has ended.
func (s Search) read(dir string) (process, bool) {
	fields, err := statFields(dir)
	if err != nil || fields[0] == "Z" {
		return process{}, false
	}
	p := process{}
	p.parent, _ = strconv.Atoi(fields[1])
	p.cmdline, _ = os.ReadFile(dir + "/cmdline")
	environ, _ := os.ReadFile(dir + "/environ")
	for _, line := range bytes.Split(environ, []byte{0}) {
		if value, ok := bytes.CutPrefix(line, []byte(s.Mark+"=")); ok {
			p.mark = string(value)
		}
	}
	return p, true
}

// statFields are the fields of /proc/<pid>/stat from the third, the state; the second may hold anything.
func statFields(dir string) ([]string, error) {
	data, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("%s/stat has %d fields", dir, len(fields))
	}
	return fields, nil
}
