package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
)

// guest is a container that has no process of its own on the host: a sandboxed runtime runs it inside the process of another
// container of the pod, the host. Its end is what the runtime's wait says, and it gets its signals through the runtime.
//
// Which container is one is seen by the pid that the runtime names at create. So a runtime whose containers are processes is
// asked nothing more.
type guest struct{ *container }

const (
	// signalPatience is how long a signal is waited for, which is a little less than a daemon waits for an answer. It goes on.
	signalPatience = 2 * time.Second
	// signalTimeout bounds a call of the runtime that delivers a signal.
	signalTimeout = 30 * time.Second
	// hindsight is how long after a call that failed the end of the container may come to light, which was the reason.
	hindsight = time.Second
	// sayLimit bounds what is read of what the runtime says, in bytes.
	sayLimit = 16 << 10
)

// A wait that fails while the sandbox lives is tried again after a pause that doubles, so often: most of a minute in all. One that has
// lasted is no failure of the ones before it.
const (
	waitTries  = 10
	waitPause  = 50 * time.Millisecond
	waitLasted = time.Minute
	waitGroup  = "wait"
	waitedCode = `"exitStatus":`
)

// hostOf is the container whose first process is the one that the runtime names for c, and that process; nil where none is.
func (m *Monitor) hostOf(c *container, pid int) (*container, wire.Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range m.containers {
		if p, ok := ownProcess(other); other != c && ok && p.PID == pid {
			began, err := StartTime(pid) // it may have ended just now, and the pid be somebody else's
			if err == nil && began == p.StartTime {
				return other, p
			}
		}
	}
	return nil, wire.Process{}
}

// ownProcess is the process that a living container has of its own.
func ownProcess(c *container) (wire.Process, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process, c.bundle.Sandbox == "" && !c.ending && (c.state == wire.Created || c.state == wire.Running)
}

// sandboxed says whether the container is a guest.
func sandboxed(c *container) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bundle.Sandbox != ""
}

// adopt takes a container that the runtime has made in the sandbox of another.
func (c guest) adopt(host *container, p wire.Process) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.process, c.bundle.Sandbox = p, host.id
	c.oom = watchOOM(p.PID, host.id)
	if err := c.save(); err != nil { // before the pid: with that another monitor takes it up
		return err
	}
	if err := writeJSON(filepath.Join(c.dir, pidFile), &c.process); err != nil {
		return err
	}
	c.state = wire.Created
	return nil
}

// takeOver takes up a guest that another monitor has left.
func (c guest) takeOver() {
	c.oom = watchOOM(c.process.PID, c.bundle.Sandbox)
	execution(c).takeOver()
	if c.state != wire.Running {
		return
	}
	go func() {
		old := cgroup.At(filepath.Join(c.m.group(c.id), waitGroup)) // where the other monitor's wait goes on
		if err := errors.Join(vacate(old), old.Remove()); err != nil {
			complain("end the wait for %s: %v", c.id, err)
		}
		c.watch()
	}()
}

// inherit takes the terminal's master; the pidfd beside it is the sandbox's.
func (c guest) inherit(fds []int) error {
	if len(fds) == 0 {
		return nil
	}
	_ = unix.Close(fds[0])
	if len(fds) == 1 {
		return nil
	}
	return heir(c).inheritConsole(fds[1])
}

// streams are the container's ends of its streams once more, for the runtime's start: a sandbox takes them only then.
func (c guest) streams() (theirs [3]int, err error) {
	theirs = noFiles
	if c.bundle.Terminal {
		return theirs, nil
	}
	for i, name := range streamNames {
		if i == 0 && !c.bundle.Stdin {
			continue
		}
		if theirs[i], err = theirEnd(c.container, i); err != nil {
			return theirs, fmt.Errorf("open FIFO %s: %w", name, err)
		}
	}
	return theirs, nil
}

// watch waits for the container's end. A sandbox that is gone has taken the container with it.
func (c guest) watch() {
	pause, try := waitPause, 1
	for !c.over() {
		began := time.Now()
		code, err := c.wait()
		switch {
		case err == nil:
			c.ended(wire.Exit{Code: int32(code), FinishedAt: time.Now().UnixNano()})
			return
		case c.over():
			return
		case !c.hosted():
			c.ended(killedExit())
			return
		}
		complain("wait for %s: %v", c.id, err)
		if time.Since(began) > waitLasted {
			pause, try = waitPause, 1
		}
		if try == waitTries {
			_ = c.send(true, int(unix.SIGKILL))
			c.ended(unknownExit())
			return
		}
		time.Sleep(pause)
		pause *= 2
		try++
	}
}

// wait runs the runtime's wait and returns the exit code that it tells.
func (c guest) wait() (int, error) {
	said, err := c.ask(context.Background(), waitGroup, "wait", c.id)
	if err != nil {
		return 0, err
	}
	return waited(said)
}

// waited is the exit code in what a wait says, which is an object like {"id":"…","exitStatus":0}.
func waited(said string) (int, error) {
	_, rest, ok := strings.Cut(said, waitedCode)
	rest = strings.TrimSpace(rest)
	end := strings.IndexAny(rest, ",} \n")
	if !ok || end < 0 {
		return 0, fmt.Errorf("the runtime's wait says %q, and no exit status", said)
	}
	code, err := strconv.Atoi(rest[:end])
	if err != nil {
		return 0, fmt.Errorf("the runtime's wait says %q: %w", said, err)
	}
	return code, nil
}

// signal sends a signal to the container's first process, or SIGKILL to all of its processes. One that was not started has
// none, and ends by a signal that asks for that.
//
// One that the runtime does not deliver, such as a real-time signal that it does not know, is passed over, but for SIGKILL: who wants the
// container's end kills it when its time is up.
func (c guest) signal(all bool, sig int) error {
	if c.over() {
		return nil
	}
	waits := c.waits()
	if waits && sig != int(unix.SIGKILL) && sig != int(unix.SIGTERM) {
		return nil
	}
	done := make(chan error, 1)
	go func() {
		err := c.send(all || waits, sig)
		if err == nil && waits {
			c.ended(wire.Exit{Code: 128 + int32(sig), Signal: sig, FinishedAt: time.Now().UnixNano()})
		}
		if sig != int(unix.SIGKILL) {
			err = nil // send has complained
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(signalPatience):
		return nil // its exit will tell
	}
}

// send runs the runtime's kill. A container that has ended needs none, nor one whose sandbox is gone.
func (c guest) send(all bool, sig int) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), signalTimeout, errTimeout)
	defer cancel()
	args := []string{"kill", c.id, strconv.Itoa(sig)}
	if all {
		args = []string{"kill", "--all", c.id, strconv.Itoa(sig)}
	}
	err := c.call(ctx, c.next("kill"), noFiles, args...)
	if err != nil && c.waits() && c.unknown(ctx) {
		c.ended(killedExit())
	}
	for end := time.Now().Add(hindsight); err != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		switch {
		case c.over():
			return nil
		case !c.hosted():
			c.ended(killedExit())
			return nil
		}
	}
	if err != nil {
		complain("send signal %d to %s: %v", sig, c.id, err)
		return fmt.Errorf("send signal %d: %w", sig, err)
	}
	return nil
}

// waits says whether the container has not been started, nor is it being started.
func (c guest) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == wire.Created && c.started.IsZero()
}

// unknown says whether the runtime knows of no such container that lives: its start may have failed half way.
func (c guest) unknown(ctx context.Context) bool {
	said, err := c.ask(ctx, c.next("state"), "state", c.id)
	return ctx.Err() == nil && (err != nil || strings.Contains(strings.ReplaceAll(said, " ", ""), `"status":"stopped"`))
}

// endExec kills what is left of an exec in the sandbox, as far as it has stayed in the process group that the runtime gave it.
// It returns when nobody knows of such a process.
func (c guest) endExec(pidPath string) {
	data, err := os.ReadFile(pidPath)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), goneTimeout, errTimeout)
	defer cancel()
	group := strings.TrimSpace(string(data))
	if err := c.call(ctx, c.next("kill"), noFiles, "kill", "--pgid", group, c.id, strconv.Itoa(int(unix.SIGKILL))); err != nil && !c.over() {
		complain("kill an exec in %s: %v", c.id, err)
	}
}

// ask runs a command of the runtime, as call does, and returns the beginning of what it says.
func (c guest) ask(ctx context.Context, name string, args ...string) (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	files := noFiles
	files[1] = int(w.Fd())
	err = c.call(ctx, name, files, args...)
	_ = w.Close()
	if err != nil {
		return "", err
	}
	said := make([]byte, sayLimit)
	_ = r.SetReadDeadline(time.Now().Add(hindsight)) // whoever else may hold the pipe is not waited for
	n, _ := r.Read(said)
	return string(said[:n]), nil
}

// call runs a command of the runtime in a group of that name, which is made for it: a process that is born into one in which
// processes have been killed is killed too, by Linux 6.18.
func (c guest) call(ctx context.Context, name string, files [3]int, args ...string) error {
	group, err := c.m.makeGroup(c.id, name)
	if err != nil {
		return err
	}
	defer func() { _ = group.Remove() }()
	log := filepath.Join(c.dir, name+".log")
	defer removeFiles(log)
	argv := append([]string{c.bundle.Runtime}, c.bundle.Args...)
	argv = append(append(argv, "--log", log, "--log-format", "json"), args...)
	return c.m.run(ctx, program{argv: argv, dir: c.dir, files: files, group: group, log: log})
}

// next is a name that no other call of the runtime beside the container has.
func (c guest) next(what string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	return what + "-" + strconv.Itoa(c.calls)
}

// over says whether the container's end has been seen.
func (c guest) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ending || c.state == wire.Exited
}

// hosted says whether the process of the sandbox lives.
func (c guest) hosted() bool {
	f, err := statFields(c.process.PID)
	return err == nil && len(f) > 19 && f[0] != "Z" && f[0] != "X" && f[19] == strconv.FormatUint(c.process.StartTime, 10)
}

// killedExit is the end of a container whose sandbox is gone: nothing in there got as far as an exit of its own.
func killedExit() wire.Exit {
	return wire.Exit{Code: 128 + int32(unix.SIGKILL), Signal: int(unix.SIGKILL), FinishedAt: time.Now().UnixNano()}
}
