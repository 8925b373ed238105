package bundle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cdi"
	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/limit"
	"berth/internal/look"
	"berth/internal/process"
	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
	"berth/internal/spec/device"
)

// Request is what an OCI runtime is asked for of one container, and who the container runs as.
type Request struct {
	runtime.Create
	User spec.User
}

// Adjust changes the spec of a container that is about to be made.
type Adjust func(ctx context.Context, sp *specs.Spec) error

// Request prepares all that the container's spec names, but its root and image volumes, which are mounted, and returns
// what the runtime is asked for. adjust changes the spec before it is checked; nil changes nothing.
func (c Container) Request(ctx context.Context, img Images, adjust Adjust) (req Request, err error) {
	cfg := c.ctr.Config.Get()
	h, options, err := c.b.Handlers.ForNew(c.r)
	if err != nil {
		return req, err
	}
	in, err := c.specInput(ctx, img, options)
	if err != nil {
		return req, sandbox.Invalid(diskspace.Explain(err, c.at.State, diskspace.MakeRoom))
	}
	req.User = in.User
	sp, warnings, err := spec.Build(ctx, in)
	if err != nil {
		return req, sandbox.Invalid(err)
	}
	if err := c.addDevices(ctx, sp, &req.User); err != nil {
		return req, sandbox.Invalid(err)
	}
	for _, w := range warnings {
		c.b.Log.Warn("a container gets less than it asked for", "pod", c.r.ID, "container", cfg.Metadata.Name,
			"reason", w)
	}
	if adjust != nil {
		if err := adjust(ctx, sp); err != nil {
			return req, err
		}
	}
	spec.VolumesFirst(sp, in.Volumes)           // again: devices and adjust have added mounts, and sorted them
	if err := spec.CheckPaths(sp); err != nil { // again, too
		return req, sandbox.Invalid(err)
	}
	if err := spec.PutCgroups(sp, in); err != nil { // again: adjust may have changed the namespaces
		return req, err
	}
	if err := c.b.confine(ctx, sp); err != nil {
		return req, err
	}
	if err := c.pod.makeWorkingDir(ctx, in.Paths.Rootfs, sp.Process.Cwd); err != nil {
		return req, sandbox.Invalid(err)
	}
	req.Create = runtime.Create{
		Container: string(c.ctr.ID), Handler: h, Spec: sp, Deadline: h.Timeout,
		Terminal: cfg.Tty, Stdin: cfg.Stdin, StdinOnce: cfg.StdinOnce, Owner: c.pod.ids().owner(req.User),
	}
	return req, nil
}

// addDevices adds the CDI devices of a request. Their descriptions may also add groups to the process.
func (c Container) addDevices(ctx context.Context, sp *specs.Spec, user *spec.User) error {
	cfg := c.ctr.Config.Get()
	var asked []string
	for _, d := range cfg.CDIDevices {
		asked = append(asked, d.Name)
	}
	names, err := cdi.Names(asked, cfg.Annotations)
	if err != nil || len(names) == 0 {
		return err
	}
	if err := c.b.Devices(ctx, sp, names); err != nil {
		return err
	}
	sp.Version = spec.Version(sp)
	user.AdditionalGids = sp.Process.User.AdditionalGids
	return nil
}

// specInput gathers what decides the container's spec.
func (c Container) specInput(ctx context.Context, img Images, h spec.Handler) (in spec.Input, err error) {
	cfg := withNamespaces(c.ctr.Config.Get(), c.r.Config.Get())
	in = spec.Input{
		Pod: c.r.Config.Get(), PodID: string(c.r.ID), ContainerID: string(c.ctr.ID), Container: cfg,
		Image: img.Config, Host: c.b.Host, Paths: c.pod.paths(c.ctr.ID, c.ctr.Cgroup), StatDevice: device.List,
		Handler: h, SELinux: c.r.SELinux, Project: c.b.Projects,
		AppArmorDefault: c.b.defaultProfile(),
	}
	if in.Hostname, err = c.r.Hostname(); err != nil {
		return in, fmt.Errorf("look up the node's name: %w", err)
	}
	if h.CgroupWritable {
		if in.Delegated, err = c.b.Delegated(); err != nil {
			return in, err
		}
	}
	if in.Mounts, err = c.resolveMounts(ctx, cfg.Mounts); err != nil {
		return in, err
	}
	if err = c.b.Labels.relabel(ctx, c.r, c.ctr, in.Mounts, c.b.Volumes); err != nil {
		return in, err
	}
	if err = c.stageMounts(ctx, in.Mounts); err != nil {
		return in, err
	}
	if err = c.makeMountPoints(ctx, in.Paths.Rootfs, in.Mounts); err != nil {
		return in, err
	}
	if in.Volumes, err = c.declaredVolumes(ctx, in.Paths.Rootfs, cfg, img.Config.Volumes); err != nil {
		return in, err
	}
	if in.Seccomp, err = seccompProfile(cfg); err != nil {
		return in, err
	}
	if in.Paths.PidNS, err = pidNamespace(c.r, cfg); err != nil {
		return in, err
	}
	in.User, err = resolveUser(in.Paths.Rootfs, cfg, img.Image)
	return in, err
}

// withNamespaces gives a container that says nothing about namespaces those of its pod.
func withNamespaces(c *runtimeapi.ContainerConfig, p *runtimeapi.PodSandboxConfig) *runtimeapi.ContainerConfig {
	if c.GetLinux().GetSecurityContext().GetNamespaceOptions() != nil || sandbox.Namespaces(p) == nil {
		return c
	}
	c = proto.Clone(c).(*runtimeapi.ContainerConfig)
	if c.Linux == nil {
		c.Linux = &runtimeapi.LinuxContainerConfig{}
	}
	if c.Linux.SecurityContext == nil {
		c.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{}
	}
	c.Linux.SecurityContext.NamespaceOptions = sandbox.Namespaces(p)
	return c
}

// resolveMounts finds the source of every mount, symbolic links followed. A directory that is not there is made, which
// a kubelet leaves to the runtime for a hostPath without a type; it stays.
func (c Container) resolveMounts(ctx context.Context, mounts []*runtimeapi.Mount) ([]spec.ResolvedMount, error) {
	var out []spec.ResolvedMount
	var host rootfs.HostMounts
	for i, m := range mounts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if m.Image != nil {
			src, err := c.volumeSource(i, m)
			if err != nil {
				return nil, err
			}
			out = append(out, spec.ResolvedMount{Mount: m, Source: src})
			continue
		}
		src, err := look.WithinAt(ctx, c.b.Volumes, m.HostPath, func() (string, error) { return hostSource(m, &host) })
		if err != nil {
			return nil, fmt.Errorf("mount of %s: source %q: %w", m.ContainerPath, m.HostPath, err)
		}
		out = append(out, spec.ResolvedMount{Mount: m, Source: src})
	}
	return out, nil
}

// hostSource finds or makes the source of a mount. Its disk may hang, as that of a server which is gone; the pod is to
// be stopped all the same.
func hostSource(m *runtimeapi.Mount, host *rootfs.HostMounts) (string, error) {
	src, err := rootfs.Source(m.HostPath)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(m.HostPath, 0o755); err == nil {
			src, err = rootfs.Source(m.HostPath)
		}
	}
	if err == nil && m.Propagation != runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
		err = host.CheckPropagation(src, m.Propagation == runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL)
	}
	return src, err
}

// seccompProfile reads the profile file that the container asks for, nil when it asks for none.
func seccompProfile(cfg *runtimeapi.ContainerConfig) (*spec.SeccompProfile, error) {
	path, err := spec.SeccompPath(cfg.GetLinux().GetSecurityContext())
	if path == "" || err != nil {
		return nil, err
	}
	data, err := rootfs.ReadFile("/", path, limit.SeccompProfile) // a FIFO there must not hang anything
	if err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	profile, err := spec.ParseSeccomp(data)
	if err != nil {
		return nil, fmt.Errorf("seccomp profile %s: %w", path, err)
	}
	return profile, nil
}

// pidNamespace is the PID namespace that the container joins, "" for its own or the host's.
func pidNamespace(r *sandbox.Record, cfg *runtimeapi.ContainerConfig) (string, error) {
	o := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	switch {
	case o.GetPid() == runtimeapi.NamespaceMode_TARGET:
		target, err := target(r, sandbox.ID(o.TargetId))
		if err != nil {
			return "", err
		}
		return pidNamespaceOf(target, "target container "+o.TargetId)
	case o.GetPid() == runtimeapi.NamespaceMode_POD && sandbox.SharedPID(r.Config.Get()):
		return pidNamespaceOf(r.Init, "the pod's init")
	}
	return "", nil
}

// pidNamespaceOf is the PID namespace of a process, which may have ended meanwhile and left its number to another one.
func pidNamespaceOf(p runtime.Process, what string) (string, error) {
	if !process.Alive(p.PID, p.StartTime) {
		return "", fail.New(errdefs.ErrFailedPrecondition, "%s of the PID namespace has ended", what)
	}
	return fmt.Sprintf("/proc/%d/ns/pid", p.PID), nil
}

// target is the process whose PID namespace an ephemeral container joins.
func target(r *sandbox.Record, id sandbox.ID) (none runtime.Process, err error) {
	t := r.Container(id)
	if t == nil {
		return none, fail.New(errdefs.ErrNotFound, "target container %q of the PID namespace: not in pod %s", id, r.ID)
	}
	if t.State != sandbox.Running {
		return none, fail.New(errdefs.ErrFailedPrecondition, "target container %s of the PID namespace is %s, not running",
			id, t.State)
	}
	return t.Process, nil
}

// resolveUser finds who the container runs as, in the accounts of its own root.
func resolveUser(root string, cfg *runtimeapi.ContainerConfig, img Image) (spec.User, error) {
	passwd, group, err := rootfs.Accounts(root)
	if err != nil {
		return spec.User{}, err
	}
	want, err := spec.RequestedUser(cfg, img.Config)
	if err != nil {
		return spec.User{}, err
	}
	return spec.ResolveUser(passwd, group, want)
}
