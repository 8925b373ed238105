package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/fault"
)

// spawn starts a monitor. It is given its listening socket, so it can be
// connected to at once.
func spawn(ctx context.Context, l *link) error {
	l.reap() // the one before
	dir := l.cfg.dir(l.pod)
	lock, err := lockDir(l, dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	listener, err := listen(dir)
	if err != nil {
		return err
	}
	defer listener.Close()
	log, err := os.OpenFile(filepath.Join(dir, "m.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	argv := []string{
		"berth-monitor", "-dir", dir, "-exits", l.cfg.exits(l.pod), "-tracking", l.cfg.Tracking, "-group",
		l.cfg.containersGroup(), "-listener", "3", "-lock", "4",
	}
	attr := &os.ProcAttr{Dir: dir, Files: []*os.File{null, null, log, listener, lock}, Env: environment()}
	_ = fault.At("runtime.spawn.before")
	if ctx.Err() != nil { // the pod may have been shut down meanwhile
		return context.Cause(ctx)
	}
	return l.cfg.inScope(ctx, func() error { return bear(l, argv, attr) })
}

// births is how often a birth is tried.
const births = 5

// inScope has a monitor be born in the scope of the monitors. birth makes the monitor's group, which must be there when
// the process starts: the scope around it may go, with the last monitor in it, just when it was found and before it is
// held. It is held anew then.
func (c *Config) inScope(ctx context.Context, birth func() error) error {
	for try := 1; ; try++ {
		release := func() {}
		if c.Scope != nil {
			var err error
			if release, err = c.Scope.Hold(ctx); err != nil {
				return err
			}
		}
		err := birth()
		release()
		away := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
		if !away || c.Scope == nil || try == births {
			return err
		}
	}
}

// bear starts the monitor in the cgroup that is named after the pod, which it makes.
func bear(l *link, argv []string, attr *os.ProcAttr) error {
	group, err := cgroup.Make(l.cfg.Tracking, filepath.Join(l.cfg.monitorsGroup(), l.pod))
	if err != nil {
		return err
	}
	g, err := group.Open()
	if err != nil {
		return err
	}
	defer g.Close()
	attr.Sys = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(g.Fd())}
	proc, err := os.StartProcess(l.cfg.Monitor, argv, attr)
	if err != nil {
		return err
	}
	_ = fault.At("runtime.spawn.after")
	wanted := l.bore(proc.Pid)
	err = proc.Release() // reap waits for it, so that no thread waits for each monitor
	if wanted {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	err = end(ctx, group)
	l.reap()
	return errors.Join(errShutDown, err)
}

// environment is what a monitor gets of the daemon's. Without huge pages a monitor takes a third of the memory where
// the kernel gives them to everybody: see docs/adr/0027.
func environment() []string {
	env := []string{"GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=8MiB", "GODEBUG=disablethp=1"}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if name == "PATH" || fault.Enabled && strings.HasPrefix(name, "BERTH_FAULT") {
			env = append(env, v)
		}
	}
	return env
}

// lockDir takes the lock of a run directory, for the monitor to hold on: two never serve one directory. A monitor that
// holds it and cannot be reached is ended, which costs its containers nothing.
func lockDir(l *link, dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	err = flock(f)
	if err == unix.EWOULDBLOCK {
		ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
		defer cancel()
		if err = end(ctx, l.cfg.monitorGroup(l.pod)); err == nil {
			l.reap()
			err = flock(f)
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s, which another monitor serves: %w", dir, err)
	}
	return f, nil
}

func flock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// listen makes the monitor's socket. An old one on which no process listens is replaced.
func listen(dir string) (*os.File, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if err := os.Remove(filepath.Join(dir, "m.sock")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "m.sock")
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/m.sock", d.Fd())}); err != nil {
		_ = f.Close()
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, 16); err != nil {
		_ = f.Close()
		return nil, os.NewSyscallError("listen", err)
	}
	return f, nil
}
