package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/fault"
	"berth/internal/monitor/wire"
)

// helloTimeout bounds the first answer of a monitor.
const helloTimeout = 10 * time.Second

// Launch makes sure that a pod's monitor runs and answers. The pod's run directory must be there.
func (r *Runtime) Launch(ctx context.Context, pod string) error {
	_, err := r.connect(ctx, pod)
	return err
}

// Adopt finds a pod's monitor again, or starts one that takes over what a killed one has left, and tells what it holds.
func (r *Runtime) Adopt(ctx context.Context, pod string) (Inventory, error) {
	list, err := r.connect(ctx, pod)
	if err != nil {
		return Inventory{}, err
	}
	c, err := r.client(pod)
	if err != nil {
		return Inventory{}, err
	}
	for _, e := range list {
		if e.State != wire.Exited {
			r.holdProcess(ctx, c, e.ID, e.Process.PID)
		}
	}
	return inventoryOf(list), nil
}

// connect returns what the pod's monitor holds; it starts a monitor when none answers.
func (r *Runtime) connect(ctx context.Context, pod string) ([]wire.Container, error) {
	if c, err := r.client(pod); err == nil {
		return r.hello(ctx, c)
	}
	conn, err := dial(r.dir(pod))
	if err != nil {
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("connect to the monitor of pod %s: %w", pod, err)
		}
		if err := r.spawn(pod); err != nil {
			return nil, fmt.Errorf("start the monitor of pod %s: %w", pod, err)
		}
		if conn, err = dial(r.dir(pod)); err != nil {
			return nil, fmt.Errorf("connect to the monitor of pod %s: %w", pod, err)
		}
	}
	c := newClient(conn,
		func(ctr string, e *wire.Exit) { r.cfg.OnExit(pod, ctr, *exitOf(e)) },
		func() { r.monitorLost(pod) })
	list, err := r.hello(ctx, c)
	if err != nil {
		c.end()
		return nil, fmt.Errorf("the monitor of pod %s: %w", pod, err)
	}
	r.mu.Lock()
	r.pods[pod] = c
	r.mu.Unlock()
	return list, nil
}

// hello subscribes to exits and checks that both sides speak the same protocol.
func (r *Runtime) hello(ctx context.Context, c *client) ([]wire.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	reply, err := c.call(ctx, wire.Request{Op: wire.Hello, Subscribe: true})
	if err != nil {
		return nil, err
	}
	if reply.Version < wire.Oldest || reply.Version > wire.Version {
		return nil, fmt.Errorf("it speaks protocol version %d, this daemon %d to %d: run the release that started it, or end the pod",
			reply.Version, wire.Oldest, wire.Version)
	}
	c.mu.Lock()
	c.pid = reply.PID
	c.mu.Unlock()
	return reply.Containers, nil
}

// spawn starts a monitor in the cgroup that is named after the pod. It is given its listening socket, so it can be
// connected to at once.
func (r *Runtime) spawn(pod string) error {
	dir := r.dir(pod)
	listener, err := listen(dir)
	if err != nil {
		return err
	}
	defer listener.Close()
	group, err := cgroup.Make(r.cfg.Tracking, filepath.Join(r.cfg.Instance, "monitors", pod))
	if err != nil {
		return err
	}
	g, err := group.Open()
	if err != nil {
		return err
	}
	defer g.Close()
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
	_ = fault.At("runtime.spawn.before")
	proc, err := os.StartProcess(r.cfg.Monitor, []string{
		"berth-monitor", "-dir", dir, "-exits", r.exits(pod), "-tracking", r.cfg.Tracking, "-group", r.containersGroup(), "-listener", "3",
	}, &os.ProcAttr{
		Dir: dir, Files: []*os.File{null, null, log, listener}, Env: append(os.Environ(), "GOMAXPROCS=1", "GOGC=50"),
		Sys: &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(g.Fd())},
	})
	if err != nil {
		return err
	}
	_ = fault.At("runtime.spawn.after")
	// It is waited for when its connection is lost, so that no thread waits for each monitor.
	return proc.Release()
}

// listen makes the monitor's socket. An old one that nobody listens on is replaced.
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

// holdProcess keeps what a monitor that takes over will need.
func (r *Runtime) holdProcess(ctx context.Context, c *client, ctr string, pid int) {
	p := pidfd(pid)
	if p == nil {
		return
	}
	held := []*os.File{p}
	if a, err := c.ask(ctx, wire.Request{Op: wire.Console, Container: ctr}); err == nil {
		held = append(held, a.fds...)
	}
	c.hold(ctr, held...)
}

// monitorLost starts another monitor for a pod whose monitor was killed: its containers go on meanwhile.
func (r *Runtime) monitorLost(pod string) {
	r.mu.Lock()
	old := r.pods[pod]
	delete(r.pods, pod)
	r.mu.Unlock()
	if old == nil {
		return
	}
	_, _ = unix.Wait4(old.pid, nil, unix.WNOHANG, nil) // where it was our child
	r.cfg.Log.Warn("a pod's monitor was lost; another one takes over", "pod", pod)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := r.connect(ctx, pod)
	if err != nil {
		r.cfg.Log.Error("no monitor could take over: the pod's containers run on, unwatched, until the daemon is started again", "pod", pod, "error", err)
		return
	}
	c, err := r.client(pod)
	if err != nil {
		return
	}
	for _, e := range list {
		r.passOn(ctx, c, old, e, pod)
	}
}

// passOn gives a monitor that takes over what was held of one container.
func (r *Runtime) passOn(ctx context.Context, c, old *client, e wire.Container, pod string) {
	old.mu.Lock()
	held := old.held[e.ID]
	delete(old.held, e.ID)
	old.mu.Unlock()
	if e.State == wire.Exited {
		closeFiles(held)
		r.cfg.OnExit(pod, e.ID, *exitOf(e.Exit))
		return
	}
	if len(held) == 0 {
		return
	}
	if _, err := c.call(ctx, wire.Request{Op: wire.Inherit, Container: e.ID}, held...); err != nil {
		r.cfg.Log.Warn("a monitor could not take over a container's process", "pod", pod, "container", e.ID, "error", err)
	}
	c.hold(e.ID, held...)
}

// Shutdown ends a pod's monitor, and whatever else is in its cgroup; nil when there is none.
func (r *Runtime) Shutdown(ctx context.Context, pod string) error {
	r.mu.Lock()
	c := r.pods[pod]
	delete(r.pods, pod)
	r.mu.Unlock()
	if c == nil {
		if conn, err := dial(r.dir(pod)); err == nil {
			c = newClient(conn, func(string, *wire.Exit) {}, func() {})
		}
	}
	group := r.monitorGroup(pod)
	if c != nil {
		c.mu.Lock()
		c.closing = true
		c.mu.Unlock()
		ask, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, _ = c.call(ask, wire.Request{Op: wire.Shutdown}) // one that hangs, or holds on, is killed below
		cancel()
		c.end()
	}
	if err := end(ctx, group); err != nil {
		return fmt.Errorf("end the monitor of pod %s: %w", pod, err)
	}
	if c != nil && c.pid > 0 {
		_, _ = unix.Wait4(c.pid, nil, 0, nil) // ours, or nobody's child here
	}
	return nil
}

// end kills what is in a group, sees it gone and removes the group.
func end(ctx context.Context, g *cgroup.Group) error {
	if err := g.Kill(); err != nil {
		return err
	}
	if err := g.WaitEmpty(ctx); err != nil {
		return err
	}
	return g.Remove()
}

// Sweep ends the monitors, and kills the containers, that belong to no pod for which live is true.
func (r *Runtime) Sweep(ctx context.Context, live func(pod string) bool) error {
	dir := filepath.Join(r.cfg.Tracking, r.cfg.Instance, "monitors")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() && !live(e.Name()) {
			errs = append(errs, r.sweepPod(ctx, e.Name()))
		}
	}
	return errors.Join(errs...)
}

func (r *Runtime) sweepPod(ctx context.Context, pod string) error {
	containers, _ := os.ReadDir(filepath.Join(r.dir(pod), "c"))
	for _, c := range containers {
		if err := end(ctx, r.containerGroup(c.Name())); err != nil {
			return err
		}
	}
	return end(ctx, r.monitorGroup(pod))
}
