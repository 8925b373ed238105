package monitor

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
)

// inheritTime is how long a monitor that takes over waits for a daemon to hand it the pidfd of a process that is gone.
const inheritTime = 10 * time.Second

// takeOver takes up what a monitor of the same directory has left when it was killed.
func (m *Monitor) takeOver() {
	entries, err := os.ReadDir(filepath.Join(m.cfg.Dir, "c"))
	if err != nil {
		return
	}
	for _, e := range entries {
		c := m.newContainer(e.Name(), wire.Bundle{})
		if readJSON(filepath.Join(c.dir, pidFile), &c.process) != nil {
			continue // never created: the daemon undoes it
		}
		if err := readJSON(filepath.Join(c.dir, bundleFile), &c.bundle); err != nil {
			complain("take over %s: %v", c.id, err)
			continue
		}
		m.containers[c.id] = c
		heir{c}.takeOver()
	}
}

func readJSON(path string, v wire.Object) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return wire.Decode(data, v)
}

// heir is a container that another monitor has left.
type heir struct{ *container }

func (c heir) takeOver() {
	c.state = wire.Created
	if c.bundle.Started > 0 && !stillWaits(c.container) {
		c.state, c.started = wire.Running, time.Unix(0, c.bundle.Started)
	}
	var exit wire.Exit
	if readJSON(filepath.Join(c.dir, exitFile), &exit) == nil {
		c.ending = true
		if !exit.Draining {
			c.state, c.exit = wire.Exited, &exit
		}
	}
	c.takeStreams()
	if c.ending {
		if exit.Draining {
			go finish(c.container, exit)
		}
		return
	}
	if c.bundle.Sandbox != "" {
		guest(c).takeOver()
		return
	}
	fd, err := unix.PidfdOpen(c.process.PID, 0)
	if err == nil {
		if at, err := StartTime(c.process.PID); err != nil || at != c.process.StartTime {
			_ = unix.Close(fd) // gone, or another process by now
			fd = -1
		}
	} else {
		fd = -1
	}
	if fd < 0 {
		go c.awaitInheritance()
		return
	}
	c.cgroup2, _ = cgroup.PathOf(c.process.PID, "")
	c.oom = watchOOM(c.process.PID, c.id)
	c.pidfd = fd
	execution(c).takeOver()
	go c.watch(fd)
}

// takeStreams opens our ends of the FIFOs again; who has held them open meanwhile is the container, and the daemon. Of
// one whose output has ended nothing is left to take.
func (c heir) takeStreams() {
	j, err := openJournal(c.dir)
	if errors.Is(err, os.ErrNotExist) && c.state == wire.Exited {
		return
	}
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) { // one of an earlier release has made none
			complain("take over %s: %v", c.id, err)
		}
		if j, err = makeJournal(c.dir); err != nil {
			complain("take over %s: a monitor that is killed will lose output: %v", c.id, err)
			j, err = memoryJournal()
		}
		if err != nil {
			complain("take over %s: its output is not read: %v", c.id, err)
			return
		}
	}
	c.out.log.keep(j)
	if !c.bundle.Terminal { // its master comes from the daemon
		openAgain(c)
	}
	if c.state != wire.Created { // else start begins to read
		c.out.log.takeUp(c.bundle.Log)
		c.out.resume()
	}
}

// openAgain opens our ends of the FIFOs.
func openAgain(c heir) {
	for n := 1; n <= 2; n++ {
		if err := c.out.open(n, filepath.Join(c.dir, streamNames[n])); err != nil {
			complain("take over %s of %s: %v", streamNames[n], c.id, err)
		}
	}
	if c.bundle.Stdin && !c.bundle.StdinClosed {
		if fd, err := unix.Open(filepath.Join(c.dir, "stdin"), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			c.stdin = fd
		}
	}
}

// watch waits for the end of a process that is not a child.
func (c heir) watch(pidfd int) {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(p, -1); err != nil && err != unix.EINTR {
			complain("watch %s: %v", c.id, err)
			return
		}
		if p[0].Revents != 0 {
			break
		}
	}
	c.ended(exitOf(c.process, pidfd))
}

// awaitInheritance gives a daemon the time to hand over a pidfd, and then says honestly that nobody saw the end.
func (c heir) awaitInheritance() {
	time.Sleep(inheritTime)
	c.unseen()
}

// unseen says honestly that nobody saw the end of the process, unless there is a pidfd that tells.
func (c heir) unseen() {
	c.mu.Lock()
	inherited := c.pidfd >= 0 || c.state == wire.Exited
	c.mu.Unlock()
	if !inherited {
		c.ended(unknownExit())
	}
}

func unknownExit() wire.Exit {
	return wire.Exit{Code: 255, Unknown: true, FinishedAt: time.Now().UnixNano()}
}

// inherit takes the pidfd, and the terminal's master, that the daemon has held. No descriptor is that it holds none.
func (c heir) inherit(fds []int) error {
	if sandboxed(c.container) {
		return guest(c).inherit(fds)
	}
	if len(fds) == 0 {
		go c.unseen()
		return nil
	}
	if len(fds) > 1 {
		if err := c.inheritConsole(fds[1]); err != nil {
			_ = unix.Close(fds[0])
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pidfd >= 0 || c.ending || c.state == wire.Exited {
		return unix.Close(fds[0])
	}
	c.pidfd = fds[0]
	go c.watch(fds[0])
	return nil
}

func (c heir) inheritConsole(fd int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.console != nil || c.state == wire.Exited {
		return unix.Close(fd)
	}
	_ = unix.SetNonblock(fd, true)
	c.console = os.NewFile(uintptr(fd), consoleName)
	c.out.openFile(1, c.console)
	if c.state == wire.Running { // else start begins to read
		c.out.resume()
	}
	return nil
}

// pidfdInfo is struct pidfd_info of <linux/pidfd.h>, as first released.
type pidfdInfo struct {
	mask, cgroupID                                              uint64
	pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fu, fg uint32
	exitCode                                                    int32
}

const (
	pidfdInfoExit = 1 << 3
	pidfdGetInfo  = 0xC000FF0B | unsafe.Sizeof(pidfdInfo{})<<16 // _IOWR(0xFF, 11, struct pidfd_info)
)

// exitPatience is how long to wait for the kernel to tell how a process ended.
const exitPatience = 15 * time.Second

// exitOf finds out how a process ended that is not a child. While it is a zombie /proc tells; once its new parent has
// reaped it the kernel does, through PIDFD_GET_INFO, since Linux 6.15. Before that, nobody can know.
func exitOf(p wire.Process, pidfd int) wire.Exit {
	x := unknownExit()
	for end := time.Now().Add(exitPatience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ws, ok := zombieStatus(p)
		var why error
		if !ok {
			ws, ok, why = reapedStatus(pidfd)
		}
		if ok {
			x.Code, x.Unknown = int32(ending{status: ws}.code()), false
			if ws.Signaled() {
				x.Signal = int(ws.Signal())
			}
			return x
		}
		if began, err := StartTime(p.PID); why != nil && why != unix.ESRCH && (err != nil || began != p.StartTime) {
			return x // reaped, and this kernel does not tell
		}
	}
	return x
}

// reapedStatus asks the kernel for the wait status of a process that has been reaped.
func reapedStatus(pidfd int) (unix.WaitStatus, bool, error) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pidfd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 {
		return 0, false, errno
	}
	return unix.WaitStatus(info.exitCode), info.mask&pidfdInfoExit != 0, nil
}

// zombieStatus reads the wait status of a process that has ended and not been reaped: the last field of its stat file.
func zombieStatus(p wire.Process) (unix.WaitStatus, bool) {
	f, err := statFields(p.PID)
	if err != nil || len(f) < 50 || f[0] != "Z" || f[19] != strconv.FormatUint(p.StartTime, 10) {
		return 0, false
	}
	n, err := strconv.ParseUint(f[49], 10, 32)
	return unix.WaitStatus(n), err == nil
}
