package pod

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/network"
	"berth/internal/op"
	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/spec"
)

// The steps of a pod that are named elsewhere: stop goes back to, and keeps, the files.
const stepFiles = "files"

// making is what a plan finds out on its way forward.
type making struct {
	ips  []netip.Addr
	init runtime.Process
}

// plan is how a pod is made, and, walked backward, how a pod is stopped and removed. It needs nothing but the record.
func (p *pod) plan(m *making) op.Plan {
	l, r := &p.s.cfg.Layout, p.rec.Load()
	ns := p.namespaces(r)
	return op.Plan{Name: "pod", Steps: []op.Step{
		{Name: "record", Do: func(context.Context) error { return p.announce() },
			Undo: func(context.Context) error { return removeDir(l.pod(p.id)) }},
		{Name: stepFiles, Do: func(context.Context) error { return p.writeFiles(r) },
			Undo: func(context.Context) error { return removeDir(l.run(p.id)) }},
		{Name: "cgroup", // made by the runtime with the first container
			Undo: func(context.Context) error { return p.removeCgroup(r) }},
		{Name: "shm", Do: func(context.Context) error { return p.mountShm(r) },
			Undo: func(context.Context) error { return rootfs.Unmount(l.shm(p.id)) }},
		{Name: "monitor", Beside: true, Deadline: 30 * time.Second,
			Do:   func(ctx context.Context) error { return p.s.cfg.Runtime.Launch(ctx, string(p.id)) },
			Undo: func(ctx context.Context) error { return p.s.cfg.Runtime.Shutdown(ctx, string(p.id)) }},
		{Name: "namespaces", Do: func(context.Context) error { return network.Pin(ns) },
			Undo: func(context.Context) error { return network.Unpin(ns) }},
		{Name: "network", Deadline: 5 * time.Minute,
			Do:   func(ctx context.Context) error { return p.attach(ctx, r, m) },
			Undo: func(ctx context.Context) error { return p.detach(ctx, r) }},
		{Name: "init", Joins: true, Do: func(ctx context.Context) error { return p.startInit(ctx, r, m) },
			Undo: func(ctx context.Context) error { return p.endInit(ctx, r) }},
	}}
}

// announce makes the pod's directory and its first record: the intent before any effect.
func (p *pod) announce() error {
	dir := p.s.cfg.pod(p.id)
	for _, d := range []string{dir, filepath.Join(dir, "exits"), filepath.Join(dir, "c")} {
		if err := os.Mkdir(d, 0o700); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return p.update("pod.creating", func(*Record) error { return nil })
}

// namespaces says what of the pod is pinned: what it does not share with the host.
func (p *pod) namespaces(r *Record) network.Namespaces {
	l, cfg := &p.s.cfg.Layout, r.Config.Get()
	ns := network.Namespaces{Sysctls: cfg.GetLinux().GetSysctls()}
	if !r.HostNetwork() {
		ns.Net, ns.UTS, ns.Hostname = l.netns(p.id), l.utsns(p.id), hostname(cfg)
	}
	if !hostIPC(cfg) {
		ns.IPC = l.ipcns(p.id)
	}
	return ns
}

// hostname is the pod's name for itself, as far as the kernel takes it.
func hostname(cfg *runtimeapi.PodSandboxConfig) string {
	if cfg.Hostname != "" {
		return cfg.Hostname
	}
	name := cfg.Metadata.GetName()
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

func (p *pod) mountShm(r *Record) error {
	if hostIPC(r.Config.Get()) {
		return nil
	}
	return rootfs.MakeShm(p.s.cfg.shm(p.id), shmSize)
}

// shmSize is the size of a pod's /dev/shm in bytes, as containerd and dockershim have it.
const shmSize = 64 << 20

// cniPod is what the network is told of the pod.
func (p *pod) cniPod(r *Record) network.Pod {
	cfg := r.Config.Get()
	n := network.Pod{
		ID: string(p.id), Name: cfg.Metadata.GetName(), Namespace: cfg.Metadata.GetNamespace(), UID: cfg.Metadata.GetUid(),
		NetNS: p.s.cfg.netns(p.id), CgroupPath: cfg.GetLinux().GetCgroupParent(), Annotations: cfg.Annotations, Labels: cfg.Labels,
	}
	if d := cfg.DnsConfig; d != nil {
		n.DNS = network.DNS{Servers: d.Servers, Searches: d.Searches, Options: d.Options}
	}
	for _, m := range cfg.PortMappings {
		n.Ports = append(n.Ports, network.Port{HostPort: m.HostPort, ContainerPort: m.ContainerPort, Protocol: m.Protocol.String(), HostIP: m.HostIp})
	}
	return n
}

func (p *pod) attach(ctx context.Context, r *Record, m *making) error {
	if r.HostNetwork() {
		return nil
	}
	res, err := p.s.cfg.Network.Attach(ctx, p.cniPod(r))
	if err != nil {
		return err
	}
	m.ips = res.IPs
	return network.SetInterfaceSysctls(p.namespaces(r))
}

func (p *pod) detach(ctx context.Context, r *Record) error {
	if r.HostNetwork() {
		return nil
	}
	return p.s.cfg.Network.Detach(ctx, p.cniPod(r))
}

// cgroupParent is the cgroup below which the pod's containers live.
func (p *pod) cgroupParent(r *Record) string {
	if parent := r.Config.Get().GetLinux().GetCgroupParent(); parent != "" {
		return parent
	}
	return p.s.cfg.defaultCgroup(p.id)
}

// removeCgroup removes the pod's cgroup where Berth named it; a kubelet removes its own.
func (p *pod) removeCgroup(r *Record) error {
	if r.Config.Get().GetLinux().GetCgroupParent() != "" {
		return nil
	}
	return p.s.cfg.CgroupTree(p.s.cfg.defaultCgroup(p.id))
}

// startInit starts the pod's own init where its containers share a PID namespace.
func (p *pod) startInit(ctx context.Context, r *Record, m *making) error {
	if !sharedPID(r.Config.Get()) {
		return nil
	}
	h, err := p.s.cfg.Handlers(r.Handler)
	if err != nil {
		return err
	}
	root := p.s.cfg.rootfs(p.id, p.id)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	sp, err := spec.BuildInit(spec.InitInput{
		Pod: r.Config.Get(), PodID: string(p.id), Host: p.s.cfg.Host, Binary: p.s.cfg.Init, Paths: p.paths(r, p.id), Handler: p.s.cfg.HandlerSpec(r.Handler),
	})
	if err != nil {
		return err
	}
	proc, err := p.s.cfg.Runtime.Create(ctx, string(p.id), runtime.Create{
		Container: string(p.id), Handler: h, Spec: sp, Deadline: p.s.cfg.CreateTimeout,
	})
	if err != nil {
		return err
	}
	m.init = proc
	return p.s.cfg.Runtime.Start(ctx, string(p.id), string(p.id), runtime.Log{})
}

func (p *pod) endInit(ctx context.Context, r *Record) error {
	if !sharedPID(r.Config.Get()) {
		return nil
	}
	h, err := p.s.cfg.Handlers(r.Handler)
	if err != nil {
		return fmt.Errorf("the pod's runtime handler: %w", err)
	}
	if err := p.s.cfg.Runtime.KillAll(ctx, string(p.id), string(p.id)); err != nil {
		return err
	}
	return p.s.cfg.Runtime.Delete(ctx, string(p.id), string(p.id), h)
}

// paths says where a container finds what the pod gives it.
func (p *pod) paths(r *Record, ctr ID) spec.Paths {
	l, cfg := &p.s.cfg.Layout, r.Config.Get()
	run := l.run(p.id)
	out := spec.Paths{
		Rootfs: l.rootfs(p.id, ctr), CgroupsPath: filepath.Join(p.cgroupParent(r), string(ctr)),
		Hostname: filepath.Join(run, "hostname"), Hosts: filepath.Join(run, "hosts"), ResolvConf: filepath.Join(run, "resolv.conf"),
		Shm: l.shm(p.id),
	}
	ns := p.namespaces(r)
	out.NetNS, out.IPCNS, out.UTSNS = ns.Net, ns.IPC, ns.UTS
	if hostIPC(cfg) {
		out.Shm = "/dev/shm"
	}
	return out
}
