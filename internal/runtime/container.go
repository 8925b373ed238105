package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/fault"
	"berth/internal/monitor/wire"
	"berth/internal/process"
)

// args are what every call of a handler's runtime begins with.
func (h Handler) args() []string {
	var a []string
	if h.Root != "" {
		a = append(a, "--root", h.Root)
	}
	if h.SystemdCgroup {
		a = append(a, "--systemd-cgroup")
	}
	return append(a, h.ExtraArgs...)
}

// Create makes a container: its first process exists afterwards and waits. When it fails, what it had made is gone but
// for what Delete removes.
func (r *Runtime) Create(ctx context.Context, pod string, c Create) (Process, error) {
	data, err := json.Marshal(c.Spec)
	if err != nil {
		return Process{}, fmt.Errorf("encode the spec of container %s: %w", c.Container, err)
	}
	dir := r.cfg.bundle(pod, c.Container)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return Process{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600); err != nil {
		return Process{}, err
	}
	if err := os.MkdirAll(c.Handler.Root, 0o711); err != nil {
		return Process{}, err
	}
	_ = fault.At("runtime.create.before")
	reply, err := r.call(ctx, pod, wire.Request{
		Op: wire.Create, Container: c.Container, Timeout: c.Deadline.Milliseconds(),
		Create: &wire.Bundle{
			Runtime: c.Handler.Path, Args: c.Handler.args(), Terminal: c.Terminal, Stdin: c.Stdin, StdinOnce: c.StdinOnce,
			Cgroups: c.cgroups(), Owner: c.Owner,
		},
	})
	_ = fault.At("runtime.create.after")
	if err != nil {
		return Process{}, err
	}
	l := r.links.get(pod)
	if m := l.live(); m != nil { // another that is joined holds it then
		hold(ctx, l, m, wire.Container{
			ID: c.Container, Process: *reply.Process, Terminal: c.Terminal, StdinOnce: c.StdinOnce && c.Stdin,
		})
	}
	return *reply.Process, nil
}

// Start opens the container's log and lets its first process go. deadline bounds the OCI runtime's start. It may be
// called again: a process that was let go is not let go twice. Where no monitor answers, the error is of the kind
// unavailable.
func (r *Runtime) Start(ctx context.Context, pod, ctr string, log Log, deadline time.Duration) error {
	q := wire.Request{Op: wire.Start, Container: ctr, Timeout: deadline.Milliseconds(), Log: log.wire()}
	_, err := r.call(ctx, pod, q)
	if errors.Is(err, errNoMonitor) {
		return fail.New(errdefs.ErrUnavailable, "%w", err)
	}
	return err
}

func (l Log) wire() *wire.Log {
	if l.Path == "" {
		return nil
	}
	return &wire.Log{Dir: l.Dir, Path: l.Path, Rate: l.Rate, Burst: l.Burst}
}

// Signal sends a signal to the container's first process; nil when that has ended. It needs no monitor, but for a
// process in a sandbox, which only the runtime reaches: a monitor that does not answer is replaced for that.
func (r *Runtime) Signal(ctx context.Context, pod, ctr string, sig int) error {
	if b, err := r.cfg.bundleOf(pod, ctr); err == nil && b.Sandbox == "" {
		return signal(&r.cfg, r.links.get(pod).handles, pod, ctr, sig)
	}
	return insist(ctx, r, pod, wire.Request{Op: wire.Signal, Container: ctr, Signal: sig})
}

// signal sends a signal to a process that is the host's own.
func signal(cfg *Config, handles *handles, pod, ctr string, sig int) error {
	p, err := cfg.processOf(pod, ctr)
	if err != nil {
		return fmt.Errorf("find the process of container %s: %w", ctr, err)
	}
	fd, err := handles.process(ctr, p)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer fd.Close()
	return process.Signal(fd, sig)
}

// KillAll kills everything in the container's cgroups. It needs no monitor, but for processes in a sandbox, which only
// the runtime reaches; nil when nothing is there. The first process, which may be in a cgroup that is not its own, is
// sent a signal as well. A security module may refuse signals, as an AppArmor profile without rules for them does, but
// it is not asked about cgroup.kill: an error counts only while something lives.
func (r *Runtime) KillAll(ctx context.Context, pod, ctr string) error {
	b, err := r.cfg.bundleOf(pod, ctr)
	var refused error
	switch {
	case err == nil && b.Sandbox != "":
		if insist(ctx, r, pod, wire.Request{Op: wire.KillAll, Container: ctr}) == nil {
			return nil
		}
	case err == nil:
		refused = signal(&r.cfg, r.links.get(pod).handles, pod, ctr, int(unix.SIGKILL))
		if errors.Is(refused, fs.ErrNotExist) {
			refused = nil
		}
	}
	err = errors.Join(refused, r.cfg.killContainer(pod, ctr))
	if err != nil && goneSoon(ctx, &r.cfg, pod, ctr) {
		return nil
	}
	return err
}

// insist asks a pod's monitor. One that does not answer is replaced, and the next one is asked.
func insist(ctx context.Context, r *Runtime, pod string, q wire.Request) error {
	l := r.links.get(pod)
	c := l.live()
	_, err := r.call(ctx, pod, q)
	if !errors.Is(err, errNoMonitor) || ctx.Err() != nil {
		return err
	}
	if err := l.replace(ctx, c, ReplacedStop); err != nil {
		return err
	}
	_, err = r.call(ctx, pod, q)
	return err
}

// ReopenLog makes the log go on in a new file at its path.
func (r *Runtime) ReopenLog(ctx context.Context, pod, ctr string, log Log) error {
	_, err := r.call(ctx, pod, wire.Request{Op: wire.ReopenLog, Container: ctr, Log: log.wire()})
	return err
}

// deadWait bounds how long Delete waits for killed processes.
const deadWait = 10 * time.Second

// Delete ends what lives of a container and removes all that the runtime and the monitor hold of it, and the files of
// its bundle. It needs neither to remember it; nil when nothing is there.
func (r *Runtime) Delete(ctx context.Context, pod, ctr string, h Handler) error {
	dir := r.cfg.bundle(pod, ctr)
	if err := r.KillAll(ctx, pod, ctr); err != nil {
		return fmt.Errorf("kill container %s: %w", ctr, err)
	}
	if err := waitExit(ctx, r, pod, ctr); err != nil {
		return err
	}
	if !h.remembers(ctr) { // yet: a runtime that has just been killed may be about to make its directory
		if err := end(ctx, r.cfg.containerGroup(ctr)); err != nil {
			return fmt.Errorf("end the runtime of container %s: %w", ctr, err)
		}
	}
	if h.remembers(ctr) {
		if err := r.cfg.deleteState(ctx, ctr, h); err != nil {
			return err
		}
	} else if r.cfg.Units != nil { // a runtime that was killed in the middle of a create leaves its unit
		if err := r.cfg.Units.EndContainer(ctx, ctr); err != nil {
			return err
		}
	}
	if err := removeGroups(ctx, &r.cfg, pod, ctr); err != nil {
		return fmt.Errorf("remove the cgroups of container %s: %w", ctr, err)
	}
	_, _ = r.call(ctx, pod, wire.Request{Op: wire.Forget, Container: ctr}) // one that does not hold it says so
	if l := r.links.known(pod); l != nil {
		l.handles.forget(ctr)
	}
	keepOwed(&r.cfg, pod, ctr)
	return removeBundle(dir)
}

// waitExit waits until the monitor has seen the container's end, so that no exit is lost and a plain delete works.
func waitExit(ctx context.Context, r *Runtime, pod, ctr string) error {
	exit := r.links.get(pod).handles.exit(ctr)
	pause := 2 * time.Millisecond
	for end := time.Now().Add(deadWait); ; pause = min(2*pause, 100*time.Millisecond) {
		select {
		case <-exit:
			return nil
		case <-time.After(pause):
		}
		reply, err := r.call(ctx, pod, wire.Request{Op: wire.Hello, Version: wire.Version, Subscribe: true})
		if err != nil || !lives(reply.Containers, ctr) {
			return nil // no monitor, or it does not hold it: the forced delete sees to the rest
		}
		if time.Now().After(end) || ctx.Err() != nil {
			p, _ := r.cfg.processOf(pod, ctr)
			return fmt.Errorf("container %s was killed, and its monitor does not say that it has ended: %s", ctr,
				process.Describe(p.PID, p.StartTime))
		}
	}
}

// lives says whether a container of an inventory has not ended.
func lives(list []wire.Container, ctr string) bool {
	return slices.ContainsFunc(list, func(c wire.Container) bool { return c.ID == ctr && c.State != wire.Exited })
}

// stateSuffix ends the names of the files that runsc keeps of containers, which begin with the container's id.
const stateSuffix = ".state"

// remembers says whether the handler's runtime has state of a container: a directory of that name with runc and crun, a
// file with runsc. Where that cannot be seen it may have.
func (h Handler) remembers(ctr string) bool {
	if _, err := os.Lstat(filepath.Join(h.Root, ctr)); !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if !h.Infra {
		return false
	}
	files, _ := filepath.Glob(filepath.Join(h.Root, ctr+"_*"+stateSuffix))
	return len(files) > 0
}

// rememberedAs is the container of whose state a name in a runtime's folder is, "" where it is of none.
func rememberedAs(name string) string {
	if len(name) > idLength && name[idLength] == '_' && strings.HasSuffix(name, stateSuffix) {
		return name[:idLength]
	}
	if len(name) == idLength {
		return name
	}
	return ""
}

// deleteState has the runtime remove its own state of a container: plainly, which is quick, and by force where the
// runtime does not see that the container has ended, or hangs: half of the time is for either. What a runtime leaves
// that says it is done is removed here.
func (c *Config) deleteState(ctx context.Context, ctr string, h Handler) error {
	_ = fault.At("runtime.delete.before")
	dir, name := filepath.Join(h.Root, ctr), "delete-"+ctr[:min(12, len(ctr))]
	unmountCopies(dir)
	half, cancel := halfOf(ctx)
	err := c.Helper(half, name, exec.Command(h.Path, append(h.args(), "delete", ctr)...))
	cancel()
	if err != nil {
		unmountCopies(dir) // that of a runtime that was killed meanwhile
		err = c.Helper(ctx, name, exec.Command(h.Path, append(h.args(), "delete", "--force", ctr)...))
	}
	_ = fault.At("runtime.delete.after")
	if err == nil {
		unmountCopies(dir)
		err = os.RemoveAll(dir)
	}
	if err == nil || !h.remembers(ctr) {
		return nil
	}
	return fmt.Errorf("delete container %s: %w", ctr, err)
}

// halfOf has half of the time that ctx has.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// unmountCopies unmounts what is mounted in a runtime's state of a container. runc before 1.2 bind-mounts itself there
// for a moment of each create and exec, and leaves that when it is killed. Its delete then removes its record of the
// container, fails at the mount, and by force says that all went well.
func unmountCopies(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries { // most are no mounts, and stay as they are
		_ = unix.Unmount(filepath.Join(dir, e.Name()), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
}

// The names that a monitor gives to files of a container.
const (
	exitFile    = "exit"
	bundleFile  = "bundle"
	journalFile = "journal"
)

// removeBundle removes the files of a bundle, but not what is mounted there, and not the exit: while the disk takes no
// record it is all that the next daemon knows of it. It goes with the directory, which is its owner's.
func removeBundle(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() || e.Name() == exitFile {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// ReadExit reads an exit that a monitor wrote down because no daemon listened.
func ReadExit(path string) (Exit, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Exit{}, err
	}
	var e wire.Exit
	if err := json.Unmarshal(data, &e); err != nil {
		return Exit{}, fmt.Errorf("exit file %s: %w", path, err)
	}
	return *exitOf(&e), nil
}
