package pod

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
	"berth/internal/fail"
	"berth/internal/limit"
	"berth/internal/room"
	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
	"berth/internal/spec/device"
)

// building is what a container's plan needs, and finds out, on its way.
type building struct {
	p       *pod
	cfg     *Config // that of the pod
	img     material
	user    spec.User
	process runtime.Process
	// keepExit says, on the way back, that the exit file is all that the next daemon would know of the exit.
	keepExit bool
}

// makeProcess builds the spec and has the runtime create the process.
func (b *building) makeProcess(ctx context.Context, c *sandbox.Container) error {
	r, cfg := b.p.rec.Load(), c.Config.Get()
	h, options, err := b.cfg.handlerSpec(r)
	if err != nil {
		return err
	}
	in, err := b.specInput(ctx, r, c, options)
	if err != nil {
		return sandbox.Invalid(room.Explain(err, b.cfg.State, makeRoom))
	}
	sp, warnings, err := spec.Build(ctx, in)
	if err != nil {
		return sandbox.Invalid(err)
	}
	if err := b.addDevices(ctx, sp, cfg); err != nil {
		return sandbox.Invalid(err)
	}
	for _, w := range warnings {
		b.cfg.Log.Warn("a container gets less than it asked for", "pod", b.p.id, "container", cfg.Metadata.Name,
			"reason", w)
	}
	if err := b.adjust(ctx, r, c, sp); err != nil {
		return fmt.Errorf("adjust the container by plugins: %w", pluginError(err))
	}
	if err := spec.CheckPaths(sp); err != nil { // again: devices and plugins have added mounts
		return sandbox.Invalid(err)
	}
	if err := b.cfg.confine(ctx, sp); err != nil {
		return err
	}
	if err := b.makeInRoot(ctx, r, in.Paths.Rootfs, sp.Process.Cwd); err != nil {
		return err
	}
	b.process, err = b.cfg.Runtime.Create(ctx, string(b.p.id), runtime.Create{
		Container: string(c.ID), Handler: h, Spec: sp, Deadline: h.Timeout,
		Terminal: cfg.Tty, Stdin: cfg.Stdin, StdinOnce: cfg.StdinOnce, Owner: idsOf(b.p, r).owner(b.user),
	})
	if err != nil {
		return err
	}
	// The container has its own by now. Those here would keep the node from removing what it has unmounted of a volume.
	return rootfs.Unstage(sandbox.StagedMounts(&b.cfg.Layout, b.p.id, c.ID))
}

// addDevices adds the CDI devices of a request. Their descriptions may also add groups to the process.
func (b *building) addDevices(ctx context.Context, sp *specs.Spec, cfg *runtimeapi.ContainerConfig) error {
	var asked []string
	for _, d := range cfg.CDIDevices {
		asked = append(asked, d.Name)
	}
	names, err := cdi.Names(asked, cfg.Annotations)
	if err != nil || len(names) == 0 {
		return err
	}
	if err := b.cfg.Devices(ctx, sp, names); err != nil {
		return err
	}
	sp.Version = spec.Version(sp)
	b.user.AdditionalGids = sp.Process.User.AdditionalGids
	return nil
}

// confine makes sure of the AppArmor profile of a process. What an OCI runtime says of a missing one helps nobody.
func (c *Config) confine(ctx context.Context, sp *specs.Spec) error {
	profile := sp.Process.ApparmorProfile
	if profile == "" {
		return nil
	}
	if err := c.AppArmor(ctx, profile); err != nil {
		return fail.New(errdefs.ErrFailedPrecondition, "%w", err)
	}
	return nil
}

// specInput gathers what decides the container's spec.
func (b *building) specInput(
	ctx context.Context, r *sandbox.Record, c *sandbox.Container, h spec.Handler,
) (in spec.Input, err error) {
	cfg := withNamespaces(c.Config.Get(), r.Config.Get())
	in = spec.Input{
		Pod: r.Config.Get(), PodID: string(b.p.id), ContainerID: string(c.ID), Container: cfg,
		Image: b.img.Config, Host: b.cfg.Host, Paths: b.p.paths(r, c.ID), StatDevice: device.List,
		Handler: h, SELinux: r.SELinux, Project: b.p.s.projects,
	}
	if in.Hostname, err = r.Hostname(); err != nil {
		return in, fmt.Errorf("look up the node's name: %w", err)
	}
	if h.CgroupWritable {
		if in.Delegated, err = b.cfg.Delegated(); err != nil {
			return in, err
		}
	}
	if in.Mounts, err = b.resolveMounts(ctx, c.ID, cfg.Mounts); err != nil {
		return in, err
	}
	if err = b.relabel(ctx, r, c, in.Mounts); err != nil {
		return in, err
	}
	if err = b.stageMounts(ctx, r, c.ID, in.Mounts); err != nil {
		return in, err
	}
	if in.Volumes, err = b.declaredVolumes(ctx, r, in.Paths.Rootfs, cfg); err != nil {
		return in, err
	}
	if in.Seccomp, err = seccompProfile(cfg); err != nil {
		return in, err
	}
	if in.Paths.PidNS, err = b.pidNamespace(r, cfg); err != nil {
		return in, err
	}
	in.User, err = resolveUser(in.Paths.Rootfs, cfg, b.img.Image)
	b.user = in.User
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
func (b *building) resolveMounts(
	ctx context.Context, ctr sandbox.ID, mounts []*runtimeapi.Mount,
) ([]spec.ResolvedMount, error) {
	var out []spec.ResolvedMount
	var host rootfs.HostMounts
	for i, m := range mounts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if m.Image != nil {
			src, err := b.volumeSource(ctr, i, m)
			if err != nil {
				return nil, err
			}
			out = append(out, spec.ResolvedMount{Mount: m, Source: src})
			continue
		}
		src, err := rootfs.Source(m.HostPath)
		if errors.Is(err, fs.ErrNotExist) {
			if err = os.MkdirAll(m.HostPath, 0o755); err == nil {
				src, err = rootfs.Source(m.HostPath)
			}
		}
		if err == nil && m.Propagation != runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
			err = host.CheckPropagation(src, m.Propagation == runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL)
		}
		if err != nil {
			return nil, fmt.Errorf("mount of %s: source %q: %w", m.ContainerPath, m.HostPath, err)
		}
		out = append(out, spec.ResolvedMount{Mount: m, Source: src})
	}
	return out, nil
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
func (b *building) pidNamespace(r *sandbox.Record, cfg *runtimeapi.ContainerConfig) (string, error) {
	o := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	switch {
	case o.GetPid() == runtimeapi.NamespaceMode_TARGET:
		target, err := target(r, sandbox.ID(o.TargetId))
		return fmt.Sprintf("/proc/%d/ns/pid", target), err
	case o.GetPid() == runtimeapi.NamespaceMode_POD && sandbox.SharedPID(r.Config.Get()):
		return fmt.Sprintf("/proc/%d/ns/pid", r.Init.PID), nil
	}
	return "", nil
}

// target is the process whose PID namespace an ephemeral container joins.
func target(r *sandbox.Record, id sandbox.ID) (int, error) {
	t := r.Container(id)
	if t == nil {
		return 0, fail.New(errdefs.ErrNotFound, "target container %q of the PID namespace: not in pod %s", id, r.ID)
	}
	if t.State != sandbox.Running {
		return 0, fail.New(errdefs.ErrFailedPrecondition, "target container %s of the PID namespace is %s, not running", id,
			t.State)
	}
	return t.Process.PID, nil
}

// resolveUser finds who the container runs as, in the accounts of its own root.
func resolveUser(root string, cfg *runtimeapi.ContainerConfig, img Image) (spec.User, error) {
	passwd, err := accounts(root, "/etc/passwd")
	if err != nil {
		return spec.User{}, err
	}
	group, err := accounts(root, "/etc/group")
	if err != nil {
		return spec.User{}, err
	}
	want, err := spec.RequestedUser(cfg, img.Config)
	if err != nil {
		return spec.User{}, err
	}
	return spec.ResolveUser(passwd, group, want)
}

func accounts(root, path string) ([]byte, error) {
	data, err := rootfs.ReadFile(root, path, limit.AccountFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the image's %s: %w", path, err)
	}
	return data, nil
}
