package bundle

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/internal/fail"
	"berth/internal/look"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// Builder makes what OCI runtimes are asked for on this node. Its fields are required, unless they say otherwise, and
// set before the first call. It keeps nothing of any pod: Pod and Container are given the record each time.
type Builder struct {
	Layout sandbox.Layout
	Host   spec.Host
	// Init is the program that is the init of pods, and that holds user namespaces while they are made.
	Init string
	// InitFile is Init where it has a label with which containers may run it, or empty, which is Init; nil is always Init.
	InitFile func() string

	Images   ImageSource
	Handlers Handlers
	Labels   Labels // the zero value gives none
	Cgroups  CgroupDriver
	Naming   cgroup.Naming // of containers' cgroups, where they were given without systemd

	// Sysctls are set in the namespaces of each new pod, where it has its own and sets no other value; nil sets none.
	Sysctls func() map[string]string
	// Delegated reports whether the host's cgroup2 hierarchy is mounted with nsdelegate now. Containers with a writable
	// /sys/fs/cgroup need that.
	Delegated func() (bool, error)
	// Devices adds devices that vendors describe (CDI) to a spec, by their names.
	Devices  func(ctx context.Context, sp *specs.Spec, names []string) error
	AppArmor AppArmor // required where the Host has it
	Log      *slog.Logger

	// Projects says that the writable layers are on a file system that keeps account of projects.
	Projects bool

	// Volumes are the disks that hold what containers mount of the host.
	Volumes *look.Disks
}

// AppArmor is that of the node. All may be repeated.
type AppArmor interface {
	// Default returns the profile of processes that ask for none; empty while this node has none.
	Default() string
	// Ensure makes sure that the kernel has a profile, which is not empty. An error says what to do about it.
	Ensure(ctx context.Context, profile string) error
}

// CheckRequest refuses a pod whose cgroup or labels this node cannot provide.
func (b *Builder) CheckRequest(cfg *runtimeapi.PodSandboxConfig) error {
	if parent := cfg.GetLinux().GetCgroupParent(); parent != "" {
		if _, err := b.Cgroups.Container(parent, "container"); err != nil {
			return sandbox.Invalid(err)
		}
		if path, err := b.Cgroups.Path(parent); err == nil {
			if err := cgroup.CheckPath(path); err != nil {
				return sandbox.InPod(cfg.Metadata, sandbox.Invalid(fmt.Errorf("cgroup_parent: %w", err)))
			}
		}
	}
	o := cfg.GetLinux().GetSecurityContext().GetSelinuxOptions()
	if err := b.Labels.check(b.Labels.usual(), o); err != nil {
		return sandbox.InPod(cfg.Metadata, sandbox.Invalid(err))
	}
	return nil
}

// initFile is the program of the init of a pod that is made now.
func (b *Builder) initFile() string {
	if b.InitFile == nil {
		return b.Init
	}
	return cmp.Or(b.InitFile(), b.Init)
}

// CheckLimits refuses a pod whose annotations ask for more than its handler allows, or for what cannot be kept.
func (b *Builder) CheckLimits(cfg *runtimeapi.PodSandboxConfig, h spec.Handler) error {
	if _, err := shmSize(cfg, h); err != nil {
		return err
	}
	if _, err := logLimits(cfg, h.Log); err != nil {
		return err
	}
	return b.checkStorage(cfg, h.Storage)
}

// defaultProfile is the AppArmor profile of a process that is made now and asks for none.
func (b *Builder) defaultProfile() string {
	if !b.Host.AppArmor {
		return ""
	}
	return b.AppArmor.Default()
}

// confine makes sure of the AppArmor profile of a process. The error of an OCI runtime about a missing one does not
// help.
func (b *Builder) confine(ctx context.Context, sp *specs.Spec) error {
	profile := sp.Process.ApparmorProfile
	if profile == "" {
		return nil
	}
	switch err := b.AppArmor.Ensure(ctx, profile); {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		return fail.New(errdefs.ErrFailedPrecondition, "%w", err)
	}
	return nil
}
