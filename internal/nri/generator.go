package nri

import (
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/spec"
)

// generator makes single changes to a spec, as NRI's own generator asks for them.
type generator struct {
	sp  *specs.Spec
	env *spec.Variables // the variables of sp, from the first that is added on; nil before
}

// made makes a part where the spec has none.
func made[T any](p **T) *T {
	if *p == nil {
		*p = new(T)
	}
	return *p
}

func linux(sp *specs.Spec) *specs.Linux  { return made(&sp.Linux) }
func cpu(sp *specs.Spec) *specs.LinuxCPU { return made(&made(&linux(sp).Resources).CPU) }
func memory(sp *specs.Spec) *specs.LinuxMemory {
	return made(&made(&linux(sp).Resources).Memory)
}

var namespaceTypes = []specs.LinuxNamespaceType{
	specs.PIDNamespace, specs.NetworkNamespace, specs.MountNamespace, specs.IPCNamespace, specs.UTSNamespace,
	specs.UserNamespace,
	specs.CgroupNamespace, specs.TimeNamespace,
}

func namespaceType(name string) (specs.LinuxNamespaceType, error) {
	if kind := specs.LinuxNamespaceType(name); slices.Contains(namespaceTypes, kind) {
		return kind, nil
	}
	return "", fmt.Errorf("namespace %q: there is none of that type", name)
}

func (g *generator) AddOrReplaceLinuxNamespace(name, path string) error {
	kind, err := namespaceType(name)
	if err != nil {
		return err
	}
	_ = g.RemoveLinuxNamespace(name)
	linux(g.sp).Namespaces = append(g.sp.Linux.Namespaces, specs.LinuxNamespace{Type: kind, Path: path})
	return nil
}

func (g *generator) RemoveLinuxNamespace(name string) error {
	kind, err := namespaceType(name)
	if err == nil {
		linux(g.sp).Namespaces = slices.DeleteFunc(g.sp.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
			return n.Type == kind
		})
	}
	return err
}

func (g *generator) AddAnnotation(key, value string) {
	if g.sp.Annotations == nil {
		g.sp.Annotations = map[string]string{}
	}
	g.sp.Annotations[key] = value
}
func (g *generator) RemoveAnnotation(key string) { delete(g.sp.Annotations, key) }

func (g *generator) AddLinuxSysctl(key, value string) {
	if linux(g.sp).Sysctl == nil {
		g.sp.Linux.Sysctl = map[string]string{}
	}
	g.sp.Linux.Sysctl[key] = value
}
func (g *generator) RemoveLinuxSysctl(key string) { delete(linux(g.sp).Sysctl, key) }

func (g *generator) AddPreStartHook(h specs.Hook) {
	//lint:ignore SA1019 plugins may still ask for it
	made(&g.sp.Hooks).Prestart = append(made(&g.sp.Hooks).Prestart, h)
}
func (g *generator) AddPostStartHook(h specs.Hook) {
	made(&g.sp.Hooks).Poststart = append(made(&g.sp.Hooks).Poststart, h)
}
func (g *generator) AddPostStopHook(h specs.Hook) {
	made(&g.sp.Hooks).Poststop = append(made(&g.sp.Hooks).Poststop, h)
}

// AddProcessEnv sets a variable. NRI's generator clears the environment and adds each variable anew where plugins
// change one, so no variable is looked for among the others.
func (g *generator) AddProcessEnv(name, value string) {
	p := made(&g.sp.Process)
	if g.env == nil {
		g.env = spec.NewVariables(p.Env...)
	}
	g.env.Set(name + "=" + value)
	p.Env = g.env.All()
}
func (g *generator) ClearProcessEnv()             { made(&g.sp.Process).Env, g.env = nil, nil }
func (g *generator) SetProcessArgs(args []string) { made(&g.sp.Process).Args = args }
func (g *generator) SetProcessOOMScoreAdj(n int)  { made(&g.sp.Process).OOMScoreAdj = &n }
func (g *generator) SetLinuxCgroupsPath(p string) { linux(g.sp).CgroupsPath = p }

func (g *generator) AddDevice(d specs.LinuxDevice) {
	g.RemoveDevice(d.Path)
	linux(g.sp).Devices = append(g.sp.Linux.Devices, d)
}

func (g *generator) RemoveDevice(path string) {
	named := func(d specs.LinuxDevice) bool { return d.Path == path }
	linux(g.sp).Devices = slices.DeleteFunc(g.sp.Linux.Devices, named)
}

func (g *generator) AddMount(m specs.Mount) { g.sp.Mounts = append(g.sp.Mounts, m) }
func (g *generator) ClearMounts()           { g.sp.Mounts = nil }
func (g *generator) Mounts() []specs.Mount  { return g.sp.Mounts }
func (g *generator) RemoveMount(dest string) {
	g.sp.Mounts = slices.DeleteFunc(g.sp.Mounts, func(m specs.Mount) bool { return m.Destination == dest })
}
func (g *generator) Spec() *specs.Spec { return g.sp }

func (g *generator) SetLinuxRootPropagation(p string) error {
	linux(g.sp).RootfsPropagation = p
	return nil
}

func (g *generator) AddLinuxResourcesDevice(allow bool, kind string, major, minor *int64, access string) {
	r := made(&linux(g.sp).Resources)
	r.Devices = append(r.Devices,
		specs.LinuxDeviceCgroup{Allow: allow, Type: kind, Major: major, Minor: minor, Access: access})
}

func (g *generator) AddLinuxResourcesHugepageLimit(size string, limit uint64) {
	r := made(&linux(g.sp).Resources)
	r.HugepageLimits = slices.DeleteFunc(r.HugepageLimits, func(h specs.LinuxHugepageLimit) bool {
		return h.Pagesize == size
	})
	r.HugepageLimits = append(r.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: size, Limit: limit})
}

func (g *generator) AddLinuxResourcesUnified(key, value string) {
	r := made(&linux(g.sp).Resources)
	if r.Unified == nil {
		r.Unified = map[string]string{}
	}
	r.Unified[key] = value
}
func (g *generator) SetLinuxResourcesCPUCpus(v string)           { cpu(g.sp).Cpus = v }
func (g *generator) SetLinuxResourcesCPUMems(v string)           { cpu(g.sp).Mems = v }
func (g *generator) SetLinuxResourcesCPUPeriod(v uint64)         { cpu(g.sp).Period = &v }
func (g *generator) SetLinuxResourcesCPUQuota(v int64)           { cpu(g.sp).Quota = &v }
func (g *generator) SetLinuxResourcesCPURealtimePeriod(v uint64) { cpu(g.sp).RealtimePeriod = &v }
func (g *generator) SetLinuxResourcesCPURealtimeRuntime(v int64) { cpu(g.sp).RealtimeRuntime = &v }
func (g *generator) SetLinuxResourcesCPUShares(v uint64)         { cpu(g.sp).Shares = &v }
func (g *generator) SetLinuxResourcesMemoryLimit(v int64)        { memory(g.sp).Limit = &v }
func (g *generator) SetLinuxResourcesMemorySwap(v int64)         { memory(g.sp).Swap = &v }
