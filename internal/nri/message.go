package nri

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/network"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// messages makes what plugins are sent of pods and containers.
type messages struct {
	pods interface {
		Paths(r *sandbox.Record) map[string]string
	}
	// specs are those that containers have now.
	specs interface {
		RuntimeSpec(id sandbox.ID) (*specs.Spec, error)
	}
}

// pod is a pod as plugins see it.
func (m messages) pod(r *sandbox.Record) *api.PodSandbox {
	cfg := r.Config.Get()
	meta, linux := cfg.GetMetadata(), cfg.GetLinux()
	out := &api.PodSandbox{
		Id: string(r.ID), Name: meta.GetName(), Uid: meta.GetUid(), Namespace: meta.GetNamespace(),
		Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(),
		RuntimeHandler: r.Handler, Pid: uint32(r.Init.PID),
		Linux: &api.LinuxPodSandbox{
			CgroupParent: linux.GetCgroupParent(), PodOverhead: fromLimits(linux.GetOverhead()),
			PodResources: fromLimits(linux.GetResources()),
			Namespaces:   m.namespaces(r),
		},
	}
	for _, ip := range r.IPs {
		out.Ips = append(out.Ips, ip.String())
	}
	return out
}

// namespaces are those that the pod does not share with the node, while they are pinned: of a pod that is stopped or
// half made the pins are gone, and a plugin that opens the path of one would fail, or enter another namespace.
func (m messages) namespaces(r *sandbox.Record) (all []*api.LinuxNamespace) {
	paths := m.pods.Paths(r)
	add := func(kind specs.LinuxNamespaceType, path string) {
		if network.IsNamespace(path) {
			all = append(all, &api.LinuxNamespace{Type: string(kind), Path: path})
		}
	}
	add(specs.NetworkNamespace, paths["netns"])
	if paths["netns"] != "" {
		add(specs.UTSNamespace, paths["uts"])
	}
	if r.Config.Get().GetLinux().GetSecurityContext().GetNamespaceOptions().GetIpc() != runtimeapi.NamespaceMode_NODE {
		add(specs.IPCNamespace, paths["ipc"])
	}
	add(specs.UserNamespace, paths["userns"])
	return all
}

// present leaves out the namespaces that a spec names by a path and that are gone.
func present(all []specs.LinuxNamespace) []specs.LinuxNamespace {
	return slices.DeleteFunc(slices.Clone(all), func(n specs.LinuxNamespace) bool {
		return n.Path != "" && !network.IsNamespace(n.Path)
	})
}

var states = map[sandbox.State]api.ContainerState{
	sandbox.Creating: api.ContainerState_CONTAINER_CREATED, sandbox.Created: api.ContainerState_CONTAINER_CREATED,
	sandbox.Starting: api.ContainerState_CONTAINER_CREATED, sandbox.Running: api.ContainerState_CONTAINER_RUNNING,
	sandbox.Exited: api.ContainerState_CONTAINER_STOPPED, sandbox.Removing: api.ContainerState_CONTAINER_STOPPED,
}

// container is a container as plugins see it. Where sp is nil it is read, while there is one.
func (m messages) container(r *sandbox.Record, c *sandbox.Container, sp *specs.Spec) *api.Container {
	cfg := c.Config.Get()
	out := &api.Container{
		Id: string(c.ID), PodSandboxId: string(r.ID), Name: cfg.GetMetadata().GetName(), State: states[c.State],
		Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(), Pid: uint32(c.Process.PID),
		CreatedAt: c.CreatedAt.UnixNano(), ExitCode: c.ExitCode, StatusReason: c.Reason, StatusMessage: c.Message,
		User: &api.User{Uid: c.User.UID, Gid: c.User.GID, AdditionalGids: c.User.AdditionalGids},
		Image: &api.Image{
			Name: cfg.GetImage().GetUserSpecifiedImage(), Digest: digest(c.ImageRef), ConfigDigest: c.Image,
		},
		Linux: &api.LinuxContainer{
			CgroupsPath: c.Cgroup, Resources: fromLimits(c.Limits()), SeccompProfile: seccompProfile(cfg),
		},
	}
	if out.Image.Name == "" {
		out.Image.Name = cfg.GetImage().GetImage()
	}
	if !c.StartedAt.IsZero() {
		out.StartedAt = c.StartedAt.UnixNano()
	}
	if !c.FinishedAt.IsZero() {
		out.FinishedAt = c.FinishedAt.UnixNano()
	}
	for _, d := range cfg.GetCDIDevices() {
		out.CDIDevices = append(out.CDIDevices, &api.CDIDevice{Name: d.GetName()})
	}
	if sp == nil {
		var err error
		if sp, err = m.specs.RuntimeSpec(c.ID); err != nil {
			return out // it is not written yet, or it has ended and is cleared away
		}
	}
	fill(out, sp)
	return out
}

// of is a container as plugins see it, or nil where there is none.
func (m messages) of(r *sandbox.Record, c *sandbox.Container) *api.Container {
	if c == nil {
		return nil
	}
	return m.container(r, c, nil)
}

// seccompProfile is the filter that a container asks for. Validators take one that is not told for unconfined.
func seccompProfile(cfg *runtimeapi.ContainerConfig) *api.SecurityProfile {
	asked, err := spec.SeccompChoice(cfg.GetLinux().GetSecurityContext())
	if err != nil { // the container is not made
		return nil
	}
	return &api.SecurityProfile{
		ProfileType: api.SecurityProfile_ProfileType(asked.GetProfileType()), LocalhostRef: asked.GetLocalhostRef(),
	}
}

// digest is that of an image's manifest or index in the repository that it came from; "" where it is in none.
func digest(ref string) string {
	_, digest, _ := strings.Cut(ref, "@")
	return digest
}

// fill takes over what a spec says of a container.
func fill(out *api.Container, sp *specs.Spec) {
	out.Mounts, out.Hooks = api.FromOCIMounts(sp.Mounts), api.FromOCIHooks(sp.Hooks)
	all := map[string]string{}
	maps.Copy(all, out.Annotations) // of the request, of which not all reach a runtime
	maps.Copy(all, sp.Annotations)
	out.Annotations = all
	if p := sp.Process; p != nil {
		out.Args, out.Env = p.Args, p.Env
		out.User = &api.User{Uid: p.User.UID, Gid: p.User.GID, AdditionalGids: p.User.AdditionalGids}
		for _, l := range p.Rlimits {
			out.Rlimits = append(out.Rlimits, &api.POSIXRlimit{Type: l.Type, Hard: l.Hard, Soft: l.Soft})
		}
		out.Linux.OomScoreAdj = api.Int(p.OOMScoreAdj)
		out.Linux.IoPriority = api.FromOCILinuxIOPriority(p.IOPriority)
		out.Linux.Scheduler = api.FromOCILinuxScheduler(p.Scheduler)
	}
	if l := sp.Linux; l != nil {
		out.Linux.CgroupsPath = l.CgroupsPath
		out.Linux.Namespaces = api.FromOCILinuxNamespaces(present(l.Namespaces))
		out.Linux.Devices = api.FromOCILinuxDevices(l.Devices)
		out.Linux.Resources = api.FromOCILinuxResources(l.Resources, nil)
		if l.Seccomp != nil {
			out.Linux.SeccompPolicy = api.FromOCILinuxSeccomp(l.Seccomp)
		}
		if rdt := l.IntelRdt; rdt != nil {
			out.Linux.Rdt = &api.LinuxRdt{
				ClosId: api.String(rdt.ClosID), Schemata: api.RepeatedString(rdt.Schemata),
				EnableMonitoring: api.Bool(rdt.EnableMonitoring),
			}
		}
		out.Linux.Sysctl, out.Linux.NetDevices = l.Sysctl, api.FromOCILinuxNetDevices(l.NetDevices)
	}
}

// fromLimits are limits of CRI as NRI has them.
func fromLimits(in *runtimeapi.LinuxContainerResources) *api.LinuxResources {
	if in == nil {
		return nil
	}
	out := &api.LinuxResources{
		Cpu: &api.LinuxCPU{
			Shares: api.UInt64(uint64(in.CpuShares)), Quota: api.Int64(in.CpuQuota), Period: api.UInt64(uint64(in.CpuPeriod)),
			Cpus: in.CpusetCpus, Mems: in.CpusetMems,
		},
		Memory: &api.LinuxMemory{Limit: api.Int64(in.MemoryLimitInBytes)}, Unified: in.Unified,
	}
	if in.MemorySwapLimitInBytes != 0 {
		out.Memory.Swap = api.Int64(in.MemorySwapLimitInBytes)
	}
	for _, l := range in.HugepageLimits {
		out.HugepageLimits = append(out.HugepageLimits, &api.HugepageLimit{PageSize: l.PageSize, Limit: l.Limit})
	}
	return out
}

// limits are limits of NRI as CRI has them, nil when there are none.
func limits(in *api.LinuxResources) *runtimeapi.LinuxContainerResources {
	if in == nil {
		return nil
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuShares: int64(in.GetCpu().GetShares().GetValue()), CpuQuota: in.GetCpu().GetQuota().GetValue(),
		CpuPeriod: int64(in.GetCpu().GetPeriod().GetValue()), CpusetCpus: in.GetCpu().GetCpus(),
		CpusetMems:         in.GetCpu().GetMems(),
		MemoryLimitInBytes: in.GetMemory().GetLimit().GetValue(), MemorySwapLimitInBytes: in.GetMemory().GetSwap().GetValue(),
		Unified: in.GetUnified(),
	}
	for _, l := range in.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits,
			&runtimeapi.HugepageLimit{PageSize: l.GetPageSize(), Limit: l.GetLimit()})
	}
	return out
}

// pids is how many processes plugins want a container to have at most; -1 is any number, 0 that they do not say.
func pids(in *api.LinuxResources) int64 {
	if in.GetPids() == nil {
		return 0
	}
	if n := in.GetPids().GetLimit(); n > 0 {
		return n
	}
	return -1
}

// cannotChange says what of limits cannot be changed of a container that is there; nil when all can.
func cannotChange(in *api.LinuxResources) error {
	for what, class := range map[string]*api.OptionalString{"block I/O": in.GetBlockioClass(), "RDT": in.GetRdtClass()} {
		if class.GetValue() != "" {
			return fmt.Errorf("a container's %s class %q can be chosen only when it is made", what, class.GetValue())
		}
	}
	if len(in.GetDevices()) > 0 {
		return errors.New("which devices a container may use can be changed only when it is made")
	}
	return nil
}

// adjust is what is asked for where plugins have made all of want. It is want where an update says nothing, or was
// left out because its failure is to be ignored. A limit of swap that forbids it goes with that of memory, unless a
// plugin says otherwise.
func adjust(want, all *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
	if all == nil || proto.Equal(all, &runtimeapi.LinuxContainerResources{}) {
		return want
	}
	all.OomScoreAdj = want.GetOomScoreAdj()
	if swap := want.GetMemorySwapLimitInBytes(); swap == want.GetMemoryLimitInBytes() &&
		swap == all.MemorySwapLimitInBytes {
		all.MemorySwapLimitInBytes = all.MemoryLimitInBytes
	}
	return all
}
