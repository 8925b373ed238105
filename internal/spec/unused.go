package spec

import (
	"encoding/json"
	"maps"
	"path"
	"reflect"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// UnusedPart is a part of a base that no container has of it, and why.
type UnusedPart struct{ Name, Why string }

const (
	whyOwn    = "each container's own counts"
	whyMounts = "Berth mounts it itself, for all containers alike"
	whyCaps   = "a container that names no capabilities has the usual ones, and none under containerd"
)

// Unused returns the parts of the base that do not count, though containerd would make containers of them that are
// other than those of Berth. What both leave to the container, such as the program, the cgroup and hidden paths, is not
// among them.
func (b *Base) Unused() []UnusedPart {
	s := b.spec()
	var parts []UnusedPart
	for _, m := range unusedMounts(s.Mounts) {
		parts = append(parts, UnusedPart{"the options of the mount at " + m.Destination, whyMounts})
	}
	if s.Process.Capabilities == nil {
		parts = append(parts, UnusedPart{"the lack of process.capabilities", whyCaps})
	}
	for _, name := range named("", tree(withoutUsed(s))) {
		parts = append(parts, UnusedPart{name, whyOwn})
	}
	return parts
}

// unusedMounts are those at places where every container has a mount of Berth's own, with options that this has not.
func unusedMounts(all []specs.Mount) []specs.Mount {
	own := map[string][]string{}
	for _, m := range (&build{out: &specs.Spec{Linux: &specs.Linux{}}}).baseMounts() {
		own[m.Destination] = m.Options
	}
	return slices.DeleteFunc(slices.Clone(all), func(m specs.Mount) bool {
		have, ok := own[path.Clean(m.Destination)]
		return !ok || !slices.ContainsFunc(m.Options, func(o string) bool { return !slices.Contains(have, o) })
	})
}

// withoutUsed takes out of a base what counts and what both leave to the container. It changes s.
func withoutUsed(s *specs.Spec) *specs.Spec {
	s.Version, s.Mounts, s.Hooks, s.Annotations = "", nil, nil, nil
	p := s.Process
	p.Args, p.Env, p.Rlimits, p.Terminal, p.ConsoleSize = nil, nil, nil, false, nil
	p.NoNewPrivileges, p.SelinuxLabel, p.OOMScoreAdj = false, "", nil
	if p.Cwd == "/" {
		p.Cwd = ""
	}
	if caps := p.Capabilities; caps != nil {
		p.Capabilities = &specs.LinuxCapabilities{Inheritable: caps.Inheritable}
	}
	if s.Root != nil {
		s.Root.Path = ""
	}
	l := s.Linux
	l.Devices, l.Resources, l.RootfsPropagation, l.Personality, l.IntelRdt = nil, nil, "", nil, nil
	l.Seccomp, l.Sysctl, l.CgroupsPath, l.MountLabel, l.MaskedPaths, l.ReadonlyPaths = nil, nil, "", "", nil, nil
	l.Namespaces = slices.DeleteFunc(l.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type != specs.TimeNamespace && n.Type != specs.UserNamespace
	})
	return s
}

func tree(s *specs.Spec) (out map[string]any) {
	if data, err := json.Marshal(s); err == nil {
		_ = json.Unmarshal(data, &out)
	}
	return out
}

// open are the objects of a spec whose members are told one by one.
var open = []string{"", "process", "process.user", "process.capabilities", "root", "linux"}

// named lists what is anything but empty below at.
func named(at string, v map[string]any) (names []string) {
	for _, key := range slices.Sorted(maps.Keys(v)) {
		name := key
		if at != "" {
			name = at + "." + key
		}
		below, isObject := v[key].(map[string]any)
		switch {
		case isObject && slices.Contains(open, name):
			names = append(names, named(name, below)...)
		case !empty(v[key]):
			names = append(names, name)
		}
	}
	return names
}

func empty(v any) bool {
	of := reflect.ValueOf(v)
	return !of.IsValid() || of.IsZero() || (of.Kind() == reflect.Map || of.Kind() == reflect.Slice) && of.Len() == 0
}
