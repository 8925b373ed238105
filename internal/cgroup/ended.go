package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// aside is the group below its own that a process moves to in LeaveEnded.
const aside = "berth-aside"

// LeaveEnded has what this process starts in new groups live, and returns the group that it had to leave for that, ""
// where it had not to. It tries a birth in the group probe, below tracking, which it makes and removes.
//
// A process whose own group was once ended by cgroup.kill, and who was moved into it afterwards, as by systemd, which
// uses the group of a service again, starts nothing in a new group: Linux compares the two (see Make), and kills what
// is born. A new group below its own is still the same service's.
func LeaveEnded(tracking, probe string) (left string, err error) {
	g, err := Make(tracking, probe)
	if err != nil {
		return "", err
	}
	defer func() { _ = g.Remove() }()
	dies, err := birthDies(g)
	if err != nil || !dies {
		return "", err
	}
	own, err := Own(tracking)
	if err != nil {
		return "", err
	}
	below, err := Make(own, aside)
	if err == nil {
		err = Write(filepath.Join(below.Path(), "cgroup.procs"), strconv.Itoa(os.Getpid()))
	}
	if err == nil {
		if dies, err = birthDies(g); dies {
			err = fmt.Errorf("from %s, too", below.Path())
		}
	}
	if err != nil {
		err = fmt.Errorf("what is born into a new cgroup dies at once, since %s was ended by cgroup.kill: %w", own, err)
	}
	return own, err
}

// birthDies reports whether a process that is born into an empty group is killed. It is one that would fail to execute
// anything: no program is needed, and none runs.
func birthDies(g *Group) (bool, error) {
	dir, err := g.Open()
	if err != nil {
		return false, err
	}
	defer dir.Close()
	p, err := os.StartProcess("/proc/self/nothing", []string{"nothing"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())},
	})
	if err != nil {
		return false, nil // it came as far as to say so
	}
	state, err := p.Wait()
	if err != nil {
		return false, err
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	return ok && status.Signal() == syscall.SIGKILL, nil
}
