package pod

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"berth/internal/cgroup"
	"berth/internal/network"
	"berth/internal/op"
	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// The steps of a pod that are named elsewhere: stop goes back to, and keeps, the files.
const stepFiles = "files"

// making is one pod being made or unmade, by its record alone; ips and init are what is found out on the way.
type making struct {
	p    *pod
	cfg  *Config // that of the pod
	r    *sandbox.Record
	ips  []netip.Addr
	init runtime.Process
}

func (p *pod) making() *making { return &making{p: p, cfg: p.cfg, r: p.rec.Load()} }

// plan is how a pod is made, and, walked backward, how a pod is stopped and removed.
func (m *making) plan() op.Plan {
	p, l := m.p, &m.cfg.Layout
	ns := p.namespaces(m.r)
	return op.Plan{Name: "pod", Seen: m.cfg.StepSeen, Steps: []op.Step{
		{Name: "record", Do: m.announce,
			Undo: func(context.Context) error { return removeDir(l.Pod(p.id)) }},
		{Name: stepFiles, Do: func(context.Context) error { return m.writeFiles() },
			Undo: func(context.Context) error { return removeDir(l.Run(p.id)) }},
		{Name: "etc", Do: func(context.Context) error { return m.writeEtc() },
			Undo: func(context.Context) error { return rootfs.Unmount(sandbox.EtcMount(l, p.id)) }},
		{Name: "cgroup", // made by the runtime with the first container
			Undo: m.removeCgroup},
		{Name: "shm", Do: func(context.Context) error { return m.mountShm() },
			Undo: func(context.Context) error { return rootfs.Unmount(l.Shm(p.id)) }},
		{Name: "monitor", Beside: true, Deadline: 30 * time.Second,
			Do:   func(ctx context.Context) error { return p.cfg.Runtime.Launch(ctx, string(p.id)) },
			Undo: func(ctx context.Context) error { return p.cfg.Runtime.Shutdown(ctx, string(p.id)) }},
		{Name: "namespaces", Do: func(context.Context) error { return m.pin(ns) },
			Undo: func(context.Context) error { return network.Unpin(ns) }},
		{Name: "network", Deadline: 5 * time.Minute, Do: m.attach, Undo: m.detach},
		{Name: "init", Joins: true, Do: m.startInit, Undo: m.endInit},
		{Name: "plugins", Do: m.introduce, Undo: m.dismiss},
	}}
}

// announce makes the pod's directory and its first record: the intent before any effect.
func (m *making) announce(ctx context.Context) error {
	dir := m.cfg.Pod(m.p.id)
	for _, d := range []string{dir, filepath.Join(dir, "exits"), filepath.Join(dir, "c")} {
		if err := os.Mkdir(d, 0o700); err != nil && !os.IsExist(err) {
			return err
		}
	}
	if err := m.p.identity.Create(identityOf(m.r)); err != nil {
		return err
	}
	return m.p.update(ctx, "pod.creating", func(*sandbox.Record) error { return nil })
}

// namespaces says what of the pod is pinned: what it does not share with the host.
func (p *pod) namespaces(r *sandbox.Record) network.Namespaces {
	l, cfg := &p.cfg.Layout, r.Config.Get()
	ns := network.Namespaces{Sysctls: cfg.GetLinux().GetSysctls()}
	if !r.HostNetwork() {
		ns.Net, ns.UTS, ns.Hostname = l.NetNSPin(p.id), l.UTSNSPin(p.id), sandbox.OwnHostname(cfg)
	}
	if !sandbox.HostIPC(cfg) {
		ns.IPC = l.IPCNSPin(p.id)
	}
	if u := sandbox.UserNamespace(cfg); u != nil {
		ns.User, ns.IDs, ns.Holder = sandbox.UserNSPin(l, p.id), spec.IDs(u), p.cfg.Init
	}
	return ns
}

// pin makes the pod's namespaces.
func (m *making) pin(ns network.Namespaces) error {
	if sysctls := m.cfg.Sysctls; sysctls != nil {
		ns.Defaults = sysctls()
	}
	return network.Pin(ns)
}

// mountShm mounts the pod's /dev/shm. The memory that is used there counts to the containers that write to it.
func (m *making) mountShm() error {
	if sandbox.HostIPC(m.r.Config.Get()) {
		return nil
	}
	_, h, err := m.cfg.handlerSpec(m.r)
	if err != nil {
		return err
	}
	size, err := shmSize(m.r.Config.Get(), h)
	if err != nil {
		return err
	}
	root := idsOf(m.p, m.r)
	return rootfs.MakeShm(m.cfg.Shm(m.p.id), size, root.UID, root.GID, m.r.SELinux.Mount)
}

// cniPod is what the network is told of the pod.
func (m *making) cniPod() network.Pod {
	cfg := m.r.Config.Get()
	n := network.Pod{
		ID: string(m.p.id), Name: cfg.Metadata.GetName(), Namespace: cfg.Metadata.GetNamespace(), UID: cfg.Metadata.GetUid(),
		NetNS: m.cfg.NetNSPin(m.p.id), CgroupPath: m.givenCgroup(), Annotations: cfg.Annotations, Labels: cfg.Labels,
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

// givenCgroup is where the cgroup is that the pod was given, "" when it was given none.
func (m *making) givenCgroup() string {
	parent := m.r.Config.Get().GetLinux().GetCgroupParent()
	if parent == "" {
		return ""
	}
	if path, err := m.cfg.podCgroup(m.r); err == nil {
		return path
	}
	return parent
}

func (m *making) attach(ctx context.Context) error {
	if m.r.HostNetwork() {
		return nil
	}
	res, err := m.cfg.Network.Attach(ctx, m.cniPod())
	if err != nil {
		return err
	}
	m.ips = res.IPs
	return network.SetInterfaceSysctls(m.p.namespaces(m.r))
}

func (m *making) detach(ctx context.Context) error {
	if m.r.HostNetwork() {
		return nil
	}
	return m.cfg.Network.Detach(ctx, m.cniPod())
}

// cgroupParent is the cgroup below which the pod's containers live.
func (c *Config) cgroupParent(r *sandbox.Record) string {
	if parent := r.Config.Get().GetLinux().GetCgroupParent(); parent != "" {
		return parent
	}
	return c.Cgroups.Parent(string(r.ID))
}

// cgroup is a container's, as an OCI runtime takes it. That the pod's parent suits the driver was seen when the pod was
// made; where the driver was changed since, its own error is the one that counts, and it comes from the runtime.
func (c *Config) cgroup(r *sandbox.Record, ctr sandbox.ID) string {
	parent := c.cgroupParent(r)
	path, err := c.Cgroups.Container(parent, string(ctr))
	if err != nil || r.GivenPlain() {
		return filepath.Join("/", parent, string(ctr))
	}
	return path
}

// podCgroup is where in the tree the pod's cgroup is.
func (c *Config) podCgroup(r *sandbox.Record) (string, error) {
	parent := c.cgroupParent(r)
	if r.GivenPlain() {
		return cgroup.TreePath("/" + parent)
	}
	return c.Cgroups.Path(parent)
}

// removeCgroup removes the pod's cgroup where Berth named it; a kubelet removes its own. Of a cgroup that was converted
// for systemd the name is Berth's.
func (m *making) removeCgroup(ctx context.Context) error {
	if parent := m.r.Config.Get().GetLinux().GetCgroupParent(); parent != "" {
		if m.r.GivenPlain() {
			return nil
		}
		return m.cfg.Cgroups.RemoveParent(ctx, parent)
	}
	return m.cfg.Cgroups.RemovePod(ctx, string(m.p.id))
}

// startInit starts the pod's own init where it has one.
func (m *making) startInit(ctx context.Context) error {
	if !m.r.HasInit() {
		return nil
	}
	h, options, err := m.cfg.handlerSpec(m.r)
	if err != nil {
		return err
	}
	root := m.cfg.Rootfs(m.p.id, m.p.id)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := idsOf(m.p, m.r).give(root); err != nil { // the runtime makes its mount points there
		return err
	}
	if err := m.cfg.label(m.r, filepath.Dir(root), root); err != nil { // the streams of the init are beside it
		return err
	}
	sp, err := spec.BuildInit(spec.InitInput{
		Pod: m.r.Config.Get(), PodID: string(m.p.id), Host: m.cfg.Host, Binary: cmp.Or(m.cfg.InitFile,
			m.cfg.Init), SELinux: m.r.SELinux, Paths: m.p.paths(m.r, m.p.id), Handler: options,
	})
	if err != nil {
		return err
	}
	if err := m.cfg.confine(ctx, sp); err != nil {
		return err
	}
	proc, err := m.cfg.Runtime.Create(ctx, string(m.p.id), runtime.Create{
		Container: string(m.p.id), Handler: h, Spec: sp, Deadline: h.Timeout, Owner: idsOf(m.p, m.r).owner(spec.User{}),
	})
	if err != nil {
		return err
	}
	m.init = proc
	return m.cfg.Runtime.Start(ctx, string(m.p.id), string(m.p.id), runtime.Log{}, h.Timeout)
}

func (m *making) endInit(ctx context.Context) error {
	if !m.r.HasInit() {
		return nil
	}
	h, err := m.cfg.handler(m.r)
	if err != nil {
		return err
	}
	if err := m.cfg.Runtime.KillAll(ctx, string(m.p.id), string(m.p.id)); err != nil {
		return err
	}
	return m.cfg.Runtime.Delete(ctx, string(m.p.id), string(m.p.id), h)
}

// paths says where a container finds what the pod gives it.
func (p *pod) paths(r *sandbox.Record, ctr sandbox.ID) spec.Paths {
	l, cfg := &p.cfg.Layout, r.Config.Get()
	etc := sandbox.Etc(l, p.id)
	out := spec.Paths{
		Rootfs: l.Rootfs(p.id, ctr), CgroupsPath: p.cfg.cgroup(r, ctr),
		Hostname: filepath.Join(etc, "hostname"), Hosts: filepath.Join(etc, "hosts"),
		ResolvConf: filepath.Join(etc, "resolv.conf"),
		Shm:        l.Shm(p.id),
	}
	ns := p.namespaces(r)
	out.NetNS, out.IPCNS, out.UTSNS, out.UserNS = ns.Net, ns.IPC, ns.UTS, ns.User
	if sandbox.HostIPC(cfg) {
		out.Shm = "/dev/shm"
	}
	return out
}
