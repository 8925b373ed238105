package floor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// writeBundle is not timed: a daemon does as much while it waits for plugins.
func (c *Container) writeBundle() error {
	spec := c.floor.spec
	process, root, linux := *spec.Process, *spec.Root, *spec.Linux
	process.Terminal, process.Args = false, c.floor.Command
	root.Path = c.floor.Rootfs
	linux.CgroupsPath = filepath.Join(c.floor.CgroupParent, c.id)
	linux.Namespaces = c.namespaces(linux.Namespaces)
	spec.Process, spec.Root, spec.Linux = &process, &root, &linux
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.bundle, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.bundle, "config.json"), data, 0o644)
}

func (c *Container) namespaces(all []specs.LinuxNamespace) []specs.LinuxNamespace {
	var list []specs.LinuxNamespace
	for _, n := range all {
		if n.Type != specs.NetworkNamespace {
			list = append(list, n)
		}
	}
	if c.pin != "" {
		list = append(list, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: c.pin})
	}
	return list
}

// makeNamespace makes a network namespace on a thread of its own, and pins it.
func (c *Container) makeNamespace() error {
	if c.pin == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(c.pin), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(c.pin, nil, 0o444); err != nil {
		return err
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock, so that the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		own := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		if err := unix.Mount(own, c.pin, "", unix.MS_BIND, ""); err != nil {
			done <- fmt.Errorf("pin the network namespace: %w", err)
			return
		}
		done <- nil
	}()
	return <-done
}

func (c *Container) unpin() error {
	if c.pin == "" {
		return nil
	}
	if err := unix.Unmount(c.pin, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
		!errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin the network namespace: %w", err)
	}
	if err := os.Remove(c.pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (c *Container) attach(ctx context.Context) error {
	if c.pin == "" {
		return nil
	}
	c.network = true
	if _, err := c.floor.cni.AddNetworkList(ctx, c.floor.network, c.attachment()); err != nil {
		return fmt.Errorf("CNI ADD: %w", err)
	}
	return nil
}

func (c *Container) detach(ctx context.Context) error {
	if !c.network {
		return nil
	}
	if err := c.floor.cni.DelNetworkList(ctx, c.floor.network, c.attachment()); err != nil {
		return fmt.Errorf("CNI DEL: %w", err)
	}
	c.network = false
	return nil
}

func (c *Container) attachment() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: c.id, NetNS: c.pin, IfName: "eth0"}
}

func (c *Container) pid() (int, error) {
	text, err := os.ReadFile(filepath.Join(c.bundle, "pid"))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read the runtime's pid file: %w", err)
	}
	return pid, nil
}

// patience is how long a program may take to get ready, or to end.
const patience = 20 * time.Second

// awaitReady waits, untimed, until the program catches SIGTERM: before that the first process of a PID namespace would
// never see it.
func (c *Container) awaitReady(ctx context.Context) error {
	pid, err := c.pid()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(patience)
	for ctx.Err() == nil && time.Now().Before(deadline) {
		if catches(pid, unix.SIGTERM) {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("program %d does not catch SIGTERM", pid)
}

// catches reads the mask of handled signals. The runtime's own first process has a mask too, so the name counts.
func catches(pid int, signal unix.Signal) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || strings.Contains(string(text), "runc:[") {
		return false
	}
	_, rest, _ := strings.Cut(string(text), "SigCgt:")
	line, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return err == nil && mask&(1<<(uint(signal)-1)) != 0
}

// awaitEnd waits for the process behind a pidfd.
func awaitEnd(ctx context.Context, pidfd int) error {
	deadline := time.Now().Add(patience)
	for ctx.Err() == nil && time.Now().Before(deadline) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for a process: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
	return fmt.Errorf("a process did not end within %s of SIGTERM", patience)
}
