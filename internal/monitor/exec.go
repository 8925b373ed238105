package monitor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
)

// execution is one exec in a container.
type execution struct{ *container }

// exec runs a process in a running container and waits for its end. When ctx ends first, nothing of it is left. The master of
// its terminal, if it has one, goes to the socket named console.
func (c execution) exec(ctx context.Context, processFile, console string, fds [3]int) (code int, err error) {
	if err := c.in(wire.Running); err != nil {
		return 0, err
	}
	c.mu.Lock()
	c.execs++
	name := "exec-" + strconv.Itoa(c.execs)
	c.mu.Unlock()
	group, err := c.m.makeGroup(c.id, name)
	if err != nil {
		return 0, err
	}
	sub := c.subgroup(name, group)
	defer func() {
		for _, g := range sub.groups { // one in which a child of the exec lives on stays, until the container's end
			_ = g.Remove()
		}
	}()
	process, pidPath := filepath.Join(c.dir, processFile), filepath.Join(c.dir, name+".pid")
	logPath := filepath.Join(c.dir, name+".log")
	defer removeFiles(process, pidPath, logPath)
	argv := append([]string{c.bundle.Runtime}, c.bundle.Args...)
	argv = append(argv, "--log", logPath, "--log-format", "json", "exec", "--detach", "--process", process, "--pid-file", pidPath)
	if console != "" {
		argv = append(argv, "--console-socket", console) // below c.dir, where the runtime runs
	}
	argv = append(append(argv, sub.args...), c.id)
	c.m.reaper.hold()
	if err := c.m.run(ctx, program{argv: argv, dir: c.dir, files: c.give(fds), own: c.bundle.Owner != nil, group: group, log: logPath}); err != nil {
		c.m.reaper.release()
		return 0, sub.kill(err)
	}
	data, err := os.ReadFile(pidPath)
	pid, err2 := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || err2 != nil {
		c.m.reaper.release()
		return 0, sub.kill(fmt.Errorf("the runtime left no pid of the exec"))
	}
	ended := c.m.reaper.claim(pid)
	c.m.reaper.release()
	select {
	case e := <-ended:
		return e.code(), nil
	case <-ctx.Done():
		_ = unix.Kill(pid, unix.SIGKILL) // not reaped yet, so the pid is still its own
		err := sub.kill(context.Cause(ctx))
		<-ended
		return 0, err
	}
}

func removeFiles(paths ...string) {
	for _, p := range paths {
		_ = os.Remove(p)
	}
}

// subgroup is where the processes of an exec are, so that all of them can be killed.
type subgroup struct {
	args   []string // for the runtime
	groups []*cgroup.Group
}

// subgroup chooses it. A runtime moves an exec into the container's cgroup, so it must be told of a cgroup below that one;
// where the runtime leaves the cgroup2 hierarchy alone, the exec stays in the group it was born into.
func (c execution) subgroup(name string, born *cgroup.Group) subgroup {
	s := subgroup{groups: []*cgroup.Group{born}}
	own := strings.TrimPrefix(c.m.group(c.id), c.m.cfg.Tracking)
	if strings.HasPrefix(c.cgroup2, own+"/") {
		return s
	}
	root, arg := c.m.cfg.Tracking+c.cgroup2, "/"+name
	if c.m.cfg.Tracking != "/sys/fs/cgroup" {
		root, arg = v1Cgroup("pids", c.process.PID), "pids:/"+name
	}
	if root == "" || !strings.Contains(root, c.id) {
		return s
	}
	path := filepath.Join(root, name)
	if err := os.Mkdir(path, 0o755); err != nil && !os.IsExist(err) {
		return s
	}
	s.args = []string{"--cgroup", arg}
	s.groups = append(s.groups, cgroup.At(path))
	return s
}

// kill kills all that is left of the exec and returns the error that was the reason.
func (s subgroup) kill(why error) error {
	for _, g := range s.groups {
		if err := vacate(g); err != nil {
			return fmt.Errorf("%w; and something of it is left: %w", why, err)
		}
	}
	return why
}

// v1Cgroup is the directory of a process's cgroup in a v1 hierarchy, "" where there is none.
func v1Cgroup(controller string, pid int) string {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	for _, line := range strings.Split(string(data), "\n") {
		f := strings.SplitN(line, ":", 3)
		if len(f) == 3 && f[1] == controller {
			return filepath.Join("/sys/fs/cgroup", controller, f[2])
		}
	}
	return ""
}
