package bundle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/network"
	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// Pod is what the containers of one pod share on the host, by the pod's record alone. What is made and removed for it
// are its parts: Dirs, Etc, Cgroup, Shm and Pins.
type Pod struct {
	b  *Builder
	at *sandbox.Layout // of b
	r  *sandbox.Record
}

// Part is something that a step of a plan makes on the host. Either function may be repeated, also after a crash in the
// middle of it: Make succeeds when the part is there, Remove when it is not.
type Part struct {
	Make   func(context.Context) error // nil if something else makes the part
	Remove func(context.Context) error
}

// Pod is the pod of a record.
func (b *Builder) Pod(r *sandbox.Record) Pod { return Pod{b, &b.Layout, r} }

// Namespaces says what of the pod is pinned: what it does not share with the host.
func (p Pod) Namespaces() network.Namespaces {
	cfg := p.r.Config.Get()
	ns := network.Namespaces{Sysctls: cfg.GetLinux().GetSysctls()}
	if !p.r.HostNetwork() {
		ns.Net, ns.UTS, ns.Hostname = p.at.NetNSPin(p.r.ID), p.at.UTSNSPin(p.r.ID), sandbox.OwnHostname(cfg)
	}
	if !sandbox.HostIPC(cfg) {
		ns.IPC = p.at.IPCNSPin(p.r.ID)
	}
	if u := sandbox.UserNamespace(cfg); u != nil {
		ns.User, ns.IDs, ns.Holder = sandbox.UserNSPin(p.at, p.r.ID), spec.IDs(u), p.b.Init
	}
	return ns
}

// configured is Namespaces with what is set in them beside what the pod asks for: the sysctls of its handler's base
// spec, and before those the defaults of the node.
func (p Pod) configured() (network.Namespaces, error) {
	ns := p.Namespaces()
	if p.b.Sysctls != nil {
		ns.Defaults = p.b.Sysctls()
	}
	_, h, err := p.b.Handlers.ForNew(p.r)
	if err != nil || h.Base == nil {
		return ns, err
	}
	all := h.Base.Sysctls(ns.Sysctls, ns.Net != "", ns.IPC != "", ns.UTS != "")
	maps.Copy(all, ns.Sysctls)
	ns.Sysctls = all
	return ns, nil
}

// SetInterfaceSysctls sets sysctls of the interfaces that the network has given the pod.
func (p Pod) SetInterfaceSysctls() error {
	ns, err := p.configured()
	if err != nil {
		return err
	}
	return p.explain(network.SetInterfaceSysctls(ns))
}

// explain says of a sysctl that cannot be set, and that the pod did not ask for, where it is from.
func (p Pod) explain(err error) error {
	var refused *network.SysctlError
	if !errors.As(err, &refused) {
		return err
	}
	if _, asked := p.r.Config.Get().GetLinux().GetSysctls()[refused.Name]; asked {
		return err
	}
	return fail.New(errdefs.ErrFailedPrecondition, "linux.sysctl of the base spec of runtime handler %s: %v; mend it, "+
		"and run berth reload", handlerName(p.r), refused)
}

// Pins are the pod's namespaces, each pinned to a file.
func Pins(p Pod) Part {
	return Part{
		Make: func(context.Context) error {
			ns, err := p.configured()
			if err != nil {
				return err
			}
			return p.explain(network.Pin(ns))
		},
		Remove: func(context.Context) error { return network.Unpin(p.Namespaces()) },
	}
}

// CheckPins says what the pod lacks of the namespaces that it is made of.
func (p Pod) CheckPins() error {
	ns := p.Namespaces()
	for _, pin := range []string{ns.Net, ns.IPC, ns.UTS, ns.User} {
		if pin == "" {
			continue
		}
		var st unix.Statfs_t
		if err := unix.Statfs(pin, &st); err != nil || st.Type != unix.NSFS_MAGIC {
			return fmt.Errorf("namespace pin %s is gone", pin)
		}
	}
	return nil
}

// Shm is the pod's /dev/shm. The memory that is used there counts to the containers that write to it.
func Shm(p Pod) Part {
	return Part{
		Make:   func(context.Context) error { return mountShm(p) },
		Remove: func(context.Context) error { return rootfs.Unmount(p.at.Shm(p.r.ID)) },
	}
}

func mountShm(p Pod) error {
	cfg := p.r.Config.Get()
	if sandbox.HostIPC(cfg) {
		return nil
	}
	_, h, err := p.b.Handlers.ForNew(p.r)
	if err != nil {
		return err
	}
	size, err := shmSize(cfg, h)
	if err != nil {
		return err
	}
	root := p.ids()
	return rootfs.MakeShm(p.at.Shm(p.r.ID), size, root.UID, root.GID, p.r.SELinux.Mount)
}

// Network is what the network is told of the pod.
func (p Pod) Network() network.Pod {
	cfg := p.r.Config.Get()
	n := network.Pod{
		ID: string(p.r.ID), Name: cfg.Metadata.GetName(), Namespace: cfg.Metadata.GetNamespace(), UID: cfg.Metadata.GetUid(),
		NetNS: p.at.NetNSPin(p.r.ID), CgroupPath: p.givenCgroup(), Annotations: cfg.Annotations, Labels: cfg.Labels,
	}
	if d := cfg.DnsConfig; d != nil {
		n.DNS = network.DNS{Servers: d.Servers, Searches: d.Searches, Options: d.Options}
	}
	for _, m := range cfg.PortMappings {
		n.Ports = append(n.Ports, network.Port{HostPort: m.HostPort, ContainerPort: m.ContainerPort,
			Protocol: m.Protocol.String(), HostIP: m.HostIp})
	}
	return n
}

// Init prepares the container of its own that stands for the pod, and returns what the runtime is asked for.
func (p Pod) Init(ctx context.Context) (runtime.Create, error) {
	h, options, err := p.b.Handlers.ForNew(p.r)
	if err != nil {
		return runtime.Create{}, err
	}
	root, ids := p.at.Rootfs(p.r.ID, p.r.ID), p.ids()
	if err := os.MkdirAll(root, 0o755); err != nil {
		return runtime.Create{}, err
	}
	if err := ids.give(root); err != nil { // the runtime makes its mount points there
		return runtime.Create{}, err
	}
	// The streams of the init are beside it.
	if err := p.b.Labels.label(p.r, filepath.Dir(root), root); err != nil {
		return runtime.Create{}, err
	}
	sp, err := spec.BuildInit(spec.InitInput{
		Pod: p.r.Config.Get(), PodID: string(p.r.ID), Host: p.b.Host, Binary: p.b.initFile(),
		SELinux: p.r.SELinux, Paths: p.paths(p.r.ID, p.b.Cgroup(p.r, p.r.ID)), Handler: options,
		AppArmorDefault: p.b.defaultProfile(),
	})
	if err != nil {
		return runtime.Create{}, err
	}
	if err := p.b.confine(ctx, sp); err != nil {
		return runtime.Create{}, err
	}
	return runtime.Create{
		Container: string(p.r.ID), Handler: h, Spec: sp, Deadline: h.Timeout, Owner: ids.owner(spec.User{}),
	}, nil
}

// paths says where a container in that cgroup finds what the pod gives it.
func (p Pod) paths(ctr sandbox.ID, group string) spec.Paths {
	etc := sandbox.Etc(p.at, p.r.ID)
	out := spec.Paths{
		Rootfs: p.at.Rootfs(p.r.ID, ctr), CgroupsPath: group,
		Hostname: filepath.Join(etc, "hostname"), Hosts: filepath.Join(etc, "hosts"),
		ResolvConf: filepath.Join(etc, "resolv.conf"),
		Shm:        p.at.Shm(p.r.ID),
	}
	ns := p.Namespaces()
	out.NetNS, out.IPCNS, out.UTSNS, out.UserNS = ns.Net, ns.IPC, ns.UTS, ns.User
	if sandbox.HostIPC(p.r.Config.Get()) {
		out.Shm = "/dev/shm"
	}
	return out
}
