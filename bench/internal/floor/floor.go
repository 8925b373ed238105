// Package floor starts and stops a container with nothing but a network namespace, its CNI plugins and an OCI runtime,
// one after the other: what a pod costs before any daemon adds to it.
package floor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Floor starts containers. Set all fields before Prepare.
type Floor struct {
	Runtime      string   // the OCI runtime's program
	Plugins      []string // folders of CNI plugins
	Network      string   // a CNI configuration list
	Rootfs       string   // folder that every container has as its root
	Command      []string // catches SIGTERM, and waits for it
	Dir          string   // for bundles and state
	CgroupParent string

	cni     *libcni.CNIConfig
	network *libcni.NetworkConfigList
	spec    specs.Spec
	serial  int
}

// Prepare reads the network configuration and makes the runtime write its standard configuration.
func (f *Floor) Prepare() error {
	var err error
	if f.network, err = libcni.NetworkConfFromFile(f.Network); err != nil {
		return fmt.Errorf("read network configuration: %w", err)
	}
	f.cni = libcni.NewCNIConfigWithCacheDir(f.Plugins, filepath.Join(f.Dir, "cni"), nil)
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return err
	}
	if out, err := exec.Command(f.Runtime, "spec", "--bundle", f.Dir).CombinedOutput(); err != nil {
		return fmt.Errorf("write a runtime configuration: %w: %s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(f.Dir, "config.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &f.spec); err != nil {
		return fmt.Errorf("read the runtime's configuration: %w", err)
	}
	return nil
}

// Started is how long the steps of a start took.
type Started struct{ Namespace, Add, Create, Start time.Duration }

// Total is the time of the whole start.
func (s Started) Total() time.Duration { return s.Namespace + s.Add + s.Create + s.Start }

// Stopped is how long the steps of a stop took.
type Stopped struct{ Kill, Delete, Del, Unpin time.Duration }

// Total is the time of the whole stop.
func (s Stopped) Total() time.Duration { return s.Kill + s.Delete + s.Del + s.Unpin }

// Container is one that runs.
type Container struct {
	floor            *Floor
	id, bundle, pin  string
	network, created bool
}

// Start starts a container, with a network of its own or on the machine's. When it fails, what was made is undone.
func (f *Floor) Start(ctx context.Context, ownNetwork bool) (c *Container, t Started, err error) {
	f.serial++
	id := fmt.Sprintf("floor-%d-%d", os.Getpid(), f.serial)
	c = &Container{floor: f, id: id, bundle: filepath.Join(f.Dir, id)}
	if ownNetwork {
		c.pin = "/run/netns/" + id
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("floor: %w", err), c.discard())
		}
	}()
	if err := c.writeBundle(); err != nil {
		return nil, t, err
	}
	err = inOrder(
		timed(&t.Namespace, c.makeNamespace),
		timed(&t.Add, func() error { return c.attach(ctx) }),
		timed(&t.Create, func() error { return c.create(ctx) }),
		timed(&t.Start, func() error { return c.run(ctx, "start", c.id) }),
	)
	if err == nil {
		err = c.awaitReady(ctx)
	}
	return c, t, err
}

// Stop ends the container by SIGTERM and unmakes it.
func (c *Container) Stop(ctx context.Context) (t Stopped, err error) {
	err = inOrder(
		timed(&t.Kill, func() error { return c.terminate(ctx) }),
		timed(&t.Delete, func() error { return c.run(ctx, "delete", c.id) }),
		timed(&t.Del, func() error { return c.detach(ctx) }),
		timed(&t.Unpin, c.unpin),
	)
	if err != nil {
		return t, errors.Join(fmt.Errorf("floor: %w", err), c.discard())
	}
	return t, os.RemoveAll(c.bundle)
}

// Exec runs a command in the container.
func (c *Container) Exec(ctx context.Context, command ...string) (time.Duration, error) {
	begin := time.Now()
	err := c.run(ctx, append([]string{"exec", c.id}, command...)...)
	return time.Since(begin), err
}

// discard unmakes whatever is there, as well as it goes.
func (c *Container) discard() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if c.created {
		errs = append(errs, c.run(ctx, "delete", "--force", c.id))
	}
	return errors.Join(append(errs, c.detach(ctx), c.unpin(), os.RemoveAll(c.bundle))...)
}

func timed(to *time.Duration, f func() error) func() error {
	return func() error {
		begin := time.Now()
		err := f()
		*to = time.Since(begin)
		return err
	}
}

func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Container) create(ctx context.Context) error {
	c.created = true
	return c.run(ctx, "create", "--bundle", c.bundle, "--pid-file", filepath.Join(c.bundle, "pid"), c.id)
}

// run runs the OCI runtime. Its output goes nowhere: a pipe would stay open as long as the container.
func (c *Container) run(ctx context.Context, args ...string) error {
	log := filepath.Join(c.bundle, "runtime.log")
	global := []string{"--root", filepath.Join(c.floor.Dir, "runtime"), "--log", log}
	if err := exec.CommandContext(ctx, c.floor.Runtime, append(global, args...)...).Run(); err != nil {
		text, _ := os.ReadFile(log)
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(c.floor.Runtime), args[0], err, text)
	}
	return nil
}

// terminate sends SIGTERM and waits for the end.
func (c *Container) terminate(ctx context.Context) error {
	pid, err := c.pid()
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	return awaitEnd(ctx, fd)
}
