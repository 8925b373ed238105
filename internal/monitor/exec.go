package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
)

// execPrefix and a number are the name of an exec: of its files in the container's directory, and of its cgroups. Its
// log is there from its beginning until its end, by which a monitor that takes over knows one that was under way. Of
// one in a sandbox there is the pid in there, too.
const execPrefix, execLog, execInside = "exec-", ".log", ".inside.pid"

// execs are the execs of a container.
type execs struct {
	turns     turns     // of runtimes that start them
	ungrouped sync.Once // says that they have no cgroups of their own

	mu   sync.Mutex   // guards what follows
	used map[int]bool // the numbers of those that run, of those in left, and of what an earlier monitor's have left
	left []endedExec
}

// endedExec is an exec that has ended, with its cgroups in which a child lives on.
type endedExec struct {
	n      int
	groups []*cgroup.Group
}

// next returns the number of a new exec, the lowest that is free: who watches cgroups, as a kubelet's cAdvisor does,
// would see a new one for each probe.
func (e *execs) next() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n = 1; e.used[n]; n++ {
	}
	e.used[n] = true
	return n
}

// had notes that an exec of this number exists.
func (e *execs) had(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.used[n] = true
}

// mostLeft is how many of the earlier execs that have left something are looked at when one ends.
const mostLeft = 16

// remove removes the cgroups of an exec of which there is nothing else any more, and those of earlier ones in which a
// child lived on. Where one still does they stay, with their number, for the next exec or the container's end.
func (e *execs) remove(n int, groups []*cgroup.Group) {
	e.mu.Lock()
	k := min(len(e.left), mostLeft)
	try := append(e.left[:k:k], endedExec{n, groups})
	e.left = e.left[k:]
	e.mu.Unlock()
	var left []endedExec
	for i := range try {
		if try[i].groups = inUse(try[i].groups); len(try[i].groups) > 0 {
			left = append(left, try[i])
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range try {
		if len(x.groups) == 0 {
			delete(e.used, x.n)
		}
	}
	e.left = append(e.left, left...)
}

// inUse removes groups, and returns those that are still there: something lives in them, or this process lacks what it
// takes to look.
func inUse(groups []*cgroup.Group) (left []*cgroup.Group) {
	for _, g := range groups {
		if g.Remove() != nil {
			left = append(left, g)
		}
	}
	return left
}

// runExec runs a process in a running container and waits for its end. When ctx ends first, nothing of it is left. The
// master of its terminal, if it has one, goes to the socket named console. fds are the process's streams: they are
// closed here as soon as it has them, so that a client notices when the process closes one.
func runExec(ctx context.Context, c *container, processFile, console string, fds []int) (code int, err error) {
	given := sync.OnceFunc(func() { closeList(fds) })
	defer given()
	done, err := c.execs.turns.take(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	if err := c.in(wire.Running); err != nil {
		return 0, err
	}
	n, first := c.execs.next(), c.first()
	name := execPrefix + strconv.Itoa(n)
	process, pidPath := filepath.Join(c.dir, processFile), filepath.Join(c.dir, name+".pid")
	logPath, insidePath := filepath.Join(c.dir, name+execLog), filepath.Join(c.dir, name+execInside)
	var sub subgroup
	defer func() {
		removeFiles(process, pidPath, unfinished(pidPath), insidePath, logPath) // before the next exec may have the name
		c.execs.remove(n, sub.groups)
	}()
	removeFiles(unfinished(pidPath)) // a monitor of an earlier release left it
	if err := os.WriteFile(logPath, nil, 0o600); err != nil {
		return 0, err
	}
	group, err := c.m.makeGroup(c.id, name)
	if err != nil {
		return 0, err
	}
	if sub, err = newSubgroup(c, name, group); err != nil {
		return 0, fmt.Errorf("a cgroup for the exec: %w", err)
	}
	argv := append([]string{c.bundle.Runtime}, c.bundle.Args...)
	argv = append(argv, "--log", logPath, "--log-format", "json",
		"exec", "--detach", "--process", process, "--pid-file", pidPath)
	if console != "" {
		argv = append(argv, "--console-socket", console) // below c.dir, where the runtime runs
	}
	if args := first.execArgs(insidePath); args != nil {
		sub.args = args
	}
	sub.end = func() { first.endExec(insidePath) }
	argv = append(append(argv, sub.args...), c.id)
	c.m.reaper.hold()
	p := program{argv: argv, dir: c.dir, files: give(c, stdio(fds)), own: true, group: group, log: logPath}
	if err := c.m.run(ctx, p); err != nil {
		c.m.reaper.release()
		return 0, sub.kill(err)
	}
	given()
	done()
	pid, err := readPid(pidPath)
	if err != nil {
		c.m.reaper.release()
		return 0, sub.kill(fmt.Errorf("the runtime left no pid of the exec: %w", err))
	}
	ended := c.m.reaper.claim(pid)
	c.m.reaper.release()
	pidfd, err := openProcess(pid)
	switch err {
	case nil:
		defer unix.Close(pidfd)
	case unix.ESRCH: // it has ended, and the reaper has it
	default: // what cannot be ended later is ended now
		select {
		case e := <-ended: // meanwhile: the pid may be another process's
			return e.code(), nil
		default:
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return 0, sub.kill(fmt.Errorf("hold the exec's process: pidfd_open: %w", err))
	}
	if e, ok := endingWithin(ctx, ended); ok {
		return e.code(), nil
	}
	err = sub.kill(context.Cause(ctx), pidfd)
	select {
	case <-ended:
	case <-time.After(goneTimeout): // it was never a child of ours, or hangs in the kernel
	}
	return 0, err
}

// endingWithin waits for an ending until ctx ends. One that is there counts, also when both are.
func endingWithin(ctx context.Context, ended <-chan ending) (e ending, ok bool) {
	select {
	case e = <-ended:
		return e, true
	case <-ctx.Done():
	}
	select {
	case e = <-ended:
		return e, true
	default:
		return e, false
	}
}

// unfinished is what runc calls a pid file until all of it is written. It is left where runc was killed meanwhile, and
// no other runc makes a pid file of that name then.
func unfinished(pidFile string) string {
	return filepath.Join(filepath.Dir(pidFile), "."+filepath.Base(pidFile))
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
	end    func() // kills what is in a sandbox
}

// newSubgroup chooses it. A runtime moves an exec into the container's cgroup, so it must be told of a cgroup below
// that one; where the runtime leaves the cgroup2 hierarchy alone, the exec stays in the group it was born into. The
// error says what this monitor lacks for that: later it may have it. Where the container's cgroup takes none below it,
// as one that is threaded or has as many as it may (EAGAIN), an exec is all the same, and what it has started may
// outlive it.
func newSubgroup(c *container, name string, born *cgroup.Group) (s subgroup, err error) {
	s = subgroup{groups: []*cgroup.Group{born}}
	root, controller, err := execRoot(c)
	if root == "" || err != nil {
		return s, err
	}
	group, err := cgroup.Make(root, name)
	switch {
	case err == nil:
		s.args = []string{"--cgroup", controller + "/" + name}
		s.groups = append(s.groups, group)
	case wire.Lacks(err) && !errors.Is(err, unix.EAGAIN):
		return s, err
	default:
		c.execs.ungrouped.Do(func() {
			logf("what execs of %s start is not ended with them: %v", c.id, err)
		})
	}
	return s, nil
}

// execRoot is the container's own cgroup, below which a runtime is told to put an exec, and the controller's name
// before that path where it is one of v1. "" is that an exec stays where it is born. The error is a lack that keeps
// from looking.
func execRoot(c *container) (root, controller string, err error) {
	cgroup2 := c.groups.tracked()
	own := strings.TrimPrefix(c.m.group(c.id), c.m.cfg.Tracking)
	if strings.HasPrefix(cgroup2, own+"/") {
		return "", "", nil
	}
	root = c.m.cfg.Tracking + cgroup2
	if c.m.cfg.Tracking != "/sys/fs/cgroup" {
		path, err := pathOf(c.process.PID, "pids")
		if wire.Lacks(err) {
			return "", "", err
		}
		if err != nil {
			return "", "", nil
		}
		// its first process may be further down
		root, controller = ownedBy(filepath.Join("/sys/fs/cgroup/pids", path), c.id), "pids:"
	}
	if !strings.Contains(root, c.id) {
		return "", "", nil
	}
	return root, controller, nil
}

// takeOverExecs counts the execs of the last monitor, so that no other gets the name of one, and kills those that were
// under way, which have a log: no client is left to be told of their end, and no monitor keeps their time. What an exec
// that had ended has left lives on, and its number is free when that has ended, too.
func takeOverExecs(c *container) error {
	root, _, err := execRoot(c)
	if err != nil {
		return err
	}
	numbers := map[int]bool{}
	for _, dir := range []string{c.dir, c.m.group(c.id), root} {
		entries, err := readDir(dir)
		if wire.Lacks(err) {
			return fmt.Errorf("find its execs: %w", err)
		}
		for _, e := range entries {
			number, _, _ := strings.Cut(strings.TrimPrefix(e.Name(), execPrefix), ".")
			if n, err := strconv.Atoi(number); err == nil && strings.HasPrefix(e.Name(), execPrefix) {
				numbers[n] = true
			}
		}
	}
	for n := range numbers {
		name := execPrefix + strconv.Itoa(n)
		groups := []*cgroup.Group{cgroup.At(filepath.Join(c.m.group(c.id), name))}
		if root != "" {
			groups = append(groups, cgroup.At(filepath.Join(root, name)))
		}
		c.execs.had(n)
		if _, err := os.Lstat(filepath.Join(c.dir, name+execLog)); err != nil {
			c.execs.remove(n, groups)
			continue
		}
		go func() {
			endExec(c, name, groups)
			c.execs.remove(n, groups)
		}()
	}
	return nil
}

// endExec kills an exec that the last monitor had under way.
func endExec(c *container, name string, groups []*cgroup.Group) {
	inside := filepath.Join(c.dir, name+execInside)
	c.first().endExec(inside)
	for _, g := range groups {
		err := patiently(func() error {
			if err := vacate(g); err != nil {
				return err
			}
			return g.Remove()
		})
		if err != nil {
			logf("end %s of %s, which the last monitor had under way: %v", name, c.id, err)
		}
	}
	pidFile := filepath.Join(c.dir, name+".pid")
	removeFiles(pidFile, unfinished(pidFile), inside, filepath.Join(c.dir, name+execLog))
}

// kill kills all that is left of the exec and returns the error that was the reason. Of its processes those are named,
// by pidfd, that may be in no group.
func (s subgroup) kill(why error, pidfds ...int) error {
	for _, fd := range pidfds { // before the end in a sandbox, with which they end
		if fd >= 0 {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
	}
	s.end()
	for _, g := range s.groups {
		if err := patiently(func() error { return vacate(g) }); err != nil {
			return fmt.Errorf("%w; and something of it is left: %w", why, err)
		}
	}
	return why
}
