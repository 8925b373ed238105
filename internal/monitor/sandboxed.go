package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
	proc "berth/internal/process"
)

// sandboxed is the first process of a guest: a container that has no process of its own on the host, since a sandboxed
// runtime runs it inside the process of another container of the pod, the host. Its end is what the runtime's wait
// says, and it gets its signals through the runtime.
//
// Which container is one is seen by the pid that the runtime names at create. So a runtime whose containers are
// processes is asked nothing more.
type sandboxed struct {
	c     *container
	calls atomic.Uint64 // of the runtime, beside the container
}

const (
	// signalWait is how long a signal is waited for, which is a little less than a daemon waits for an answer. It goes on.
	signalWait = 2 * time.Second
	// signalTimeout bounds a call of the runtime that delivers a signal.
	signalTimeout = 30 * time.Second
	// hindsight is how long after a call that failed the end of the container may come to light, which was the reason.
	hindsight = time.Second
	// sayLimit bounds what is read of what the runtime says, in bytes.
	sayLimit = 16 << 10
)

// findAgain is when a monitor that lacks what it takes to run the runtime's wait tries that once more.
const findAgain = 500 * time.Millisecond

// A wait that fails while the sandbox lives is tried again after a pause that doubles, so often: most of a minute in
// all. One that has lasted is no failure of the ones before it.
const (
	waitTries  = 10
	waitPause  = 50 * time.Millisecond
	waitLasted = time.Minute
	waitGroup  = "wait"
	waitedCode = `"exitStatus":`
)

// takeOver takes up a guest that another monitor has left.
func (s *sandboxed) takeOver() (begin func(), err error) {
	s.c.oom = watchOOM(s.c.process.PID, s.c.id, s.c.bundle.Sandbox)
	if err := takeOverExecs(s.c); err != nil {
		return nil, err
	}
	if s.c.state != wire.Running {
		return nothing, nil
	}
	wait := func() {
		old := cgroup.At(filepath.Join(s.c.m.group(s.c.id), waitGroup)) // where the other monitor's wait goes on
		if err := patiently(func() error { return errors.Join(vacate(old), old.Remove()) }); err != nil {
			logf("end the wait for %s: %v", s.c.id, err)
		}
		s.watch()
	}
	return func() { go wait() }, nil
}

// inherit takes the terminal's master; the pidfd beside it is the sandbox's.
func (s *sandboxed) inherit(fds []int) error {
	if len(fds) == 0 {
		return nil
	}
	_ = unix.Close(fds[0])
	if len(fds) == 1 {
		return nil
	}
	return s.c.takeTerminal(fds[1])
}

// startStreams are the container's ends of its streams once more, for the runtime's start: a sandbox takes them only
// then.
func (s *sandboxed) startStreams() (theirs [3]int, err error) {
	theirs = noFiles
	if s.c.bundle.Terminal {
		return theirs, nil
	}
	for i, name := range streamNames {
		if i == 0 && !s.c.bundle.Stdin {
			continue
		}
		if theirs[i], err = theirEnd(s.c, i); err != nil {
			return theirs, fmt.Errorf("open FIFO %s: %w", name, err)
		}
	}
	return theirs, nil
}

// watch waits for the container's end. A sandbox that is gone has taken the container with it. While this monitor lacks
// what it takes to run the runtime's wait, as descriptors, that has not failed, however long it takes: the container
// could not be killed either, and one that is told to have ended is started a second time. It is said in the log, with
// pauses that double.
func (s *sandboxed) watch() {
	pause, try, lacks := waitPause, 1, 0
	for !s.c.over() {
		began := time.Now()
		code, err := s.wait()
		switch {
		case err == nil:
			s.c.ended(wire.Exit{Code: int32(code), FinishedAt: time.Now().UnixNano()})
			return
		case s.c.over():
			return
		case !s.hosted():
			s.c.ended(killedExit())
			return
		}
		if wire.Lacks(err) {
			if lacks++; lacks&(lacks-1) == 0 {
				logf("wait for %s: %v; it has failed %d times so, and is tried until it can be", s.c.id, err, lacks)
			}
			time.Sleep(findAgain)
			continue
		}
		lacks = 0
		logf("wait for %s: %v", s.c.id, err)
		if time.Since(began) > waitLasted {
			pause, try = waitPause, 1
		}
		if try == waitTries {
			_ = s.send(true, int(unix.SIGKILL))
			s.c.ended(unknownExit())
			return
		}
		time.Sleep(pause)
		pause *= 2
		try++
	}
}

// wait runs the runtime's wait and returns the exit code that it tells.
func (s *sandboxed) wait() (int, error) {
	said, err := s.ask(context.Background(), waitGroup, "wait", s.c.id)
	if err != nil {
		return 0, err
	}
	return waited(said)
}

// waited returns the exit code in the output of wait, which is an object like {"id":"…","exitStatus":0}.
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

// deliver sends a signal to the container's first process, or SIGKILL to all of its processes. One that was not started
// has none, and ends by a signal that asks for that.
//
// One that the runtime does not deliver, such as a real-time signal that it does not know, is passed over, but for
// SIGKILL: who wants the container's end kills it when its time is up.
func (s *sandboxed) deliver(all bool, sig int) error {
	if s.c.over() {
		return nil
	}
	waits := s.c.waits()
	if waits && sig != int(unix.SIGKILL) && sig != int(unix.SIGTERM) {
		return nil
	}
	done := make(chan error, 1)
	go func() {
		err := s.send(all || waits, sig)
		if err == nil && waits {
			s.c.ended(wire.Exit{Code: 128 + int32(sig), Signal: sig, FinishedAt: time.Now().UnixNano()})
		}
		if sig != int(unix.SIGKILL) {
			err = nil // send has logged it
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(signalWait):
		return nil // its exit will tell
	}
}

// send runs the runtime's kill. A container that has ended needs none, nor one whose sandbox is gone.
func (s *sandboxed) send(all bool, sig int) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), signalTimeout, errTimeout)
	defer cancel()
	args := []string{"kill", s.c.id, strconv.Itoa(sig)}
	if all {
		args = []string{"kill", "--all", s.c.id, strconv.Itoa(sig)}
	}
	err := s.call(ctx, s.next("kill"), noFiles, args...)
	if err != nil && s.c.waits() && s.unknown(ctx) {
		s.c.ended(killedExit())
	}
	for end := time.Now().Add(hindsight); err != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		switch {
		case s.c.over():
			return nil
		case !s.hosted():
			s.c.ended(killedExit())
			return nil
		}
	}
	if err != nil {
		logf("send signal %d to %s: %v", sig, s.c.id, err)
		return fmt.Errorf("send signal %d: %w", sig, err)
	}
	return nil
}

// unknown reports whether the runtime knows of no such container that lives: its start may have failed half way.
func (s *sandboxed) unknown(ctx context.Context) bool {
	said, err := s.ask(ctx, s.next("state"), "state", s.c.id)
	if wire.Lacks(err) { // it was not asked
		return false
	}
	return ctx.Err() == nil && (err != nil || strings.Contains(strings.ReplaceAll(said, " ", ""), `"status":"stopped"`))
}

func (s *sandboxed) signal(sig int) error { return s.deliver(false, sig) }

func (s *sandboxed) kill() error { return s.deliver(true, int(unix.SIGKILL)) }

func (s *sandboxed) started() { go s.watch() }

func (s *sandboxed) close() {}

func (s *sandboxed) execArgs(inside string) []string { return []string{"--internal-pid-file", inside} }

// endExec kills what is left of an exec in the sandbox, as far as it has stayed in the process group that the runtime
// gave it. It returns when no such process is known.
func (s *sandboxed) endExec(pidPath string) {
	data, err := readFile(pidPath)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), goneTimeout, errTimeout)
	defer cancel()
	group := strings.TrimSpace(string(data))
	if err := patiently(func() error {
		return s.call(ctx, s.next("kill"), noFiles, "kill", "--pgid", group, s.c.id, strconv.Itoa(int(unix.SIGKILL)))
	}); err != nil && !s.c.over() {
		logf("kill an exec in %s: %v", s.c.id, err)
	}
}

// ask runs a command of the runtime, as call does, and returns the beginning of what it says.
func (s *sandboxed) ask(ctx context.Context, name string, args ...string) (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	files := noFiles
	files[1] = int(w.Fd())
	err = s.call(ctx, name, files, args...)
	_ = w.Close()
	if err != nil {
		return "", err
	}
	said := make([]byte, sayLimit)
	_ = r.SetReadDeadline(time.Now().Add(hindsight)) // whoever else may hold the pipe is not waited for
	n, _ := r.Read(said)
	return string(said[:n]), nil
}

// call runs a command of the runtime in a group of that name, which is made for it: a process that is born into one in
// which processes have been killed is killed too, by Linux 6.18.
func (s *sandboxed) call(ctx context.Context, name string, files [3]int, args ...string) error {
	group, err := s.c.m.makeGroup(s.c.id, name)
	if err != nil {
		return err
	}
	defer func() { _ = group.Remove() }()
	log := filepath.Join(s.c.dir, name+".log")
	defer removeFiles(log)
	argv := append([]string{s.c.bundle.Runtime}, s.c.bundle.Args...)
	argv = append(append(argv, "--log", log, "--log-format", "json"), args...)
	return s.c.m.run(ctx, program{argv: argv, dir: s.c.dir, files: files, group: group, log: log})
}

// next is a name that no other call of the runtime beside the container has.
func (s *sandboxed) next(what string) string {
	return what + "-" + strconv.FormatUint(s.calls.Add(1), 10)
}

// hosted reports whether the process of the sandbox is alive, as far as can be seen.
func (s *sandboxed) hosted() bool { return proc.Alive(s.c.process.PID, s.c.process.StartTime) }
