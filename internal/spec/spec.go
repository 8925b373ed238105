// Package spec turns what the kubelet asks for into what an OCI runtime is told: (pod, container, image config, host)
// in, one runtime spec out.
//
// Everything here is a pure function of its arguments. Nothing reads a file, a clock, the environment or a global: what
// the host can do arrives in Host, what has to be looked up in an image or on a disk arrives resolved. So a spec can be
// tested as text, and the same request on the same host gives the same bytes.
//
// What Kubernetes leaves open is decided as containerd does, because images and manifests were tried against it. Where
// the daemon itself lacks a power (a capability, CAP_SYS_RESOURCE), the request is clamped to what can be had and a
// warning says so; where a request contradicts itself or the pod, it is an error and nothing starts.
//
// Three things are on purpose not in a spec. Sysctls and the hostname belong to namespaces of the pod, which the daemon
// makes and sets up before any container joins them (see CheckSysctls). SELinux relabelling of volumes changes the host
// and is the caller's.
package spec

import (
	"context"
	"errors"
	"fmt"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Input is all that decides a container's spec.
type Input struct {
	Pod         *runtimeapi.PodSandboxConfig
	PodID       string
	ContainerID string
	Hostname    string // that the container sees: the pod's, or the node's where it shares the node's
	Container   *runtimeapi.ContainerConfig
	Image       imagespec.ImageConfig
	Host        Host
	Handler     Handler
	User        User            // from ResolveUser
	Mounts      []ResolvedMount // the request's mounts, in its order
	Volumes     []Volume        // what stays writable of a read-only root
	Paths       Paths
	Seccomp     *SeccompProfile // what SeccompPath named, parsed; nil when it names nothing
	SELinux     Labels          // the pod's; empty: it has none

	// Project says that the writable layer is a project of its file system, by which its use is counted.
	Project bool
	// Delegated says that the host's cgroup2 hierarchy is mounted with nsdelegate at this moment. Only a handler with
	// CgroupWritable needs it.
	Delegated bool

	// StatDevice looks up a path on the host: one device, or all devices below a directory. Their Path is the host's. It
	// is required for devices of the request, and for a privileged container, which gets what is below /dev. A path is
	// asked for once, and the walk ends when ctx does.
	StatDevice func(ctx context.Context, hostPath string) ([]specs.LinuxDevice, error)
	Rlimits    []specs.POSIXRlimit // asked for by the configuration; CRI itself has none

	// AppArmorDefault is the AppArmor profile for RuntimeDefault; empty while this node has none.
	AppArmorDefault string
}

// Host is what the machine and the daemon can do. It is probed once and never changes while the daemon lives.
type Host struct {
	KernelVersion  string // as uname -r says it
	Arch           string // as Go names it; empty is this build's
	CgroupV2       bool   // the unified hierarchy alone; false on v1 and on hybrid
	SwapAccounting bool   // the memory controller limits swap
	// sizes the hugetlb controller limits ("2MB"); empty when there is no such controller
	HugepageSizes []string
	BoundingCaps  []string            // the capabilities the daemon has ("CAP_CHOWN")
	HasResource   bool                // the daemon has CAP_SYS_RESOURCE
	OOMScoreAdj   int                 // the lowest score the daemon's children may have without CAP_SYS_RESOURCE
	Rlimits       []specs.POSIXRlimit // the daemon's own limits
	Seccomp       bool                // the kernel and the runtime filter system calls
	AppArmor      bool                // the kernel enforces AppArmor
	SELinux       bool                // containers have the SELinux labels of their pod

	// DefaultSeccomp is the filter for RuntimeDefault of a container with these capabilities. It must be there with
	// Seccomp.
	DefaultSeccomp func(caps []string) *specs.LinuxSeccomp
}

// Handler is what the configuration says about the runtime handler of the pod.
type Handler struct {
	// PrivilegedWithoutHostDevices gives a privileged container the usual devices only, under the usual device limits.
	PrivilegedWithoutHostDevices bool
	// CgroupWritable mounts /sys/fs/cgroup writable in an unprivileged container, which has a cgroup namespace of its
	// own.
	CgroupWritable bool
	// DeviceOwnershipFromSecurityContext gives the devices of a request to run_as_user and run_as_group, where these
	// are set and not 0. Devices that CDI describes belong to the user of the process with and without it, unless their
	// description names another owner.
	DeviceOwnershipFromSecurityContext bool
	// PodAnnotations and ContainerAnnotations are patterns (as path.Match, a trailing * matching any rest) of annotations
	// that the runtime gets to see.
	PodAnnotations, ContainerAnnotations []string
	// Infra says that a container stands for the pod: all get the annotations by which a sandboxed runtime tells them
	// apart.
	Infra bool
	// NoSocketcall has the default filter refuse socketcall, with which 32-bit programs make sockets that it does not
	// see.
	NoSocketcall bool
	// Base is under every container's spec; nil is none.
	Base *Base
	// PidsLimit is of a container that asks for none; 0 is no limit.
	PidsLimit int64
	// Rlimits are of every container; they go before those of Base.
	Rlimits []specs.POSIXRlimit
	// ShmSize is how many bytes the /dev/shm of a pod has that asks for no size, and MaxShmSize the most that one may ask
	// for; 0 is the default of 64 MiB, and no limit.
	ShmSize, MaxShmSize int64
	Storage             Storage
	Log                 Log
}

// Log is what may be written to the logs of a handler's containers, in bytes a second and at once. A Rate of 0 is no
// limit, and a Burst of 0 is as much as Rate.
type Log struct {
	Rate, Burst int64 // of containers whose pod asks for no other
	// MaxRate and MaxBurst are the most that a pod may ask for; 0 is as much as Rate and Burst say, where they do.
	MaxRate, MaxBurst int64
}

// Storage is what the writable layers of a handler's containers may take, in bytes and in inodes. 0 of a limit is none.
type Storage struct {
	Size, Inodes int64 // of containers whose pod asks for no other
	// MaxSize and MaxInodes are the most that a pod may ask for; 0 is as much as Size and Inodes say, where they do.
	MaxSize, MaxInodes int64
	// Refuse refuses pods with a limit where the file system cannot keep them to it. Else it is watched.
	Refuse bool
}

// User is who the container's first process is.
type User struct {
	UID, GID       uint32
	AdditionalGids []uint32 // the primary group first
	Username       string   // empty when the image does not know the uid
	HomeDir        string   `json:"Home"` // as records have it
}

// ResolvedMount is a mount of the request with its source found: symbolic links followed, existence and propagation
// checked. Of an image mount, Source is the mounted image, or the path in it. Staged says that Source is a mount made
// for this container alone, read-only with all below it and with its ids mapped as far as the request wants that.
//
// Strict are the options that the host has mounted it with and that a user namespace cannot take away: a runtime that
// sets others has to set these, too.
type ResolvedMount struct {
	Mount  *runtimeapi.Mount
	Source string
	Staged bool
	Strict []string
}

// Volume is a directory of the container's own root that the image declares as a volume. Path is where it is in the
// container, and Source where that is on the host, both without links.
type Volume struct{ Path, Source string }

// Paths is where the daemon put what the container uses. An empty namespace path is the host's namespace; an empty file
// is not mounted.
type Paths struct {
	Rootfs                      string // the mounted root
	Hostname, Hosts, ResolvConf string // files of the pod
	Shm                         string // the pod's /dev/shm, or the host's
	NetNS, IPCNS, UTSNS, UserNS string
	PidNS                       string // the namespace to join for POD (the pod init's) and TARGET
	CgroupsPath                 string // linux.cgroupsPath in the runtime's own syntax
}

// build is one Build in progress.
type build struct {
	Input
	ctx        context.Context // of Build, which the steps look at
	security   *runtimeapi.LinuxContainerSecurityContext
	privileged bool
	base       *specs.Spec // never nil
	out        *specs.Spec
	found      map[string][]specs.LinuxDevice // what StatDevice has found, by clean path
	deviceAt   map[string]int                 // places in out.Linux.Devices, by path
	warnings   []string
}

// Build makes the spec of a container. The warnings say what was clamped to what this host allows. It ends soon after
// ctx does, and takes time in proportion to its input.
func Build(ctx context.Context, in Input) (*specs.Spec, []string, error) {
	b := &build{Input: in, ctx: ctx, security: in.Container.GetLinux().GetSecurityContext()}
	b.privileged, b.base = b.security.GetPrivileged(), in.Handler.Base.spec()
	b.out = &specs.Spec{
		Root:    &specs.Root{Path: in.Paths.Rootfs, Readonly: b.security.GetReadonlyRootfs()},
		Process: &specs.Process{},
		Linux:   &specs.Linux{CgroupsPath: in.Paths.CgroupsPath, Resources: &specs.LinuxResources{}},
	}
	if err := b.check(); err != nil {
		return nil, nil, err
	}
	// The order matters twice: seccomp rules depend on the capabilities, and delegation looks at both.
	steps := []func() error{
		b.namespaces, b.process, b.capabilities, b.seccomp, b.delegation, b.apparmor, b.devices, b.mounts, b.resources,
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	b.labels()
	b.paths()
	b.out.Annotations = containerAnnotations(in)
	if err := b.underBase(); err != nil {
		return nil, nil, err
	}
	if err := PutCgroups(b.out, in); err != nil {
		return nil, nil, err
	}
	b.out.Version = LowestVersion(b.out)
	return b.out, b.warnings, nil
}

// check refuses what cannot be built at all.
func (b *build) check() error {
	switch {
	case b.Pod == nil || b.Container == nil:
		return errors.New("container spec: the pod and the container configuration are both needed")
	case b.Paths.Rootfs == "":
		return errors.New("container spec: no root file system")
	}
	return nil
}

func (b *build) warn(format string, args ...any) {
	b.warnings = append(b.warnings, fmt.Sprintf(format, args...))
}

// paths hides and write-protects what the request names. The kubelet sends the usual lists itself, and an empty one
// means that the pod asked for an unmasked /proc, so nothing is added here.
func (b *build) paths() {
	if b.privileged {
		return
	}
	b.out.Linux.MaskedPaths = b.security.GetMaskedPaths()
	b.out.Linux.ReadonlyPaths = b.security.GetReadonlyPaths()
}

// DefaultMaskedPaths is what a client hides from a container unless its user says otherwise.
func DefaultMaskedPaths() []string {
	return []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
}

// DefaultReadonlyPaths is what a client write-protects in a container unless its user says otherwise.
func DefaultReadonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}
