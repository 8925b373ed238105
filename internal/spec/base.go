package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Base is an OCI spec that an administrator puts under every container of a handler. Of it count the environment and
// the limits of the process, its capabilities, the seccomp filter, sysctls, mounts, hooks, annotations, devices,
// resources, the propagation of the root, the personality and Intel's RDT: what Berth or the request says of the same
// thing is stronger. All else is the container's own (Unused says what that leaves out), so that a whole spec, as tools
// print one, may be used as it is.
type Base struct{ json []byte }

// ParseBase reads a base spec and refuses what no container could be made from.
func ParseBase(data []byte) (*Base, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var s specs.Spec
	if err := dec.Decode(&s); err != nil {
		line := bytes.Count(data[:min(int(dec.InputOffset()), len(data))], []byte("\n")) + 1
		return nil, fmt.Errorf("line %d: %w", line, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("it goes on after the spec")
	}
	for _, check := range []func(*specs.Spec) error{checkMounts, checkProcess, checkLinux} {
		if err := check(&s); err != nil {
			return nil, err
		}
	}
	return &Base{json: slices.Clone(data)}, nil
}

func checkMounts(s *specs.Spec) error {
	for _, m := range s.Mounts {
		if !path.IsAbs(m.Destination) || path.Clean(m.Destination) == "/" {
			return fmt.Errorf("mount at %q: its destination is no absolute path below /", m.Destination)
		}
	}
	return nil
}

func checkProcess(s *specs.Spec) error {
	if s.Process == nil {
		return nil
	}
	for _, kv := range s.Process.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.ContainsRune(kv, 0) {
			return fmt.Errorf("process.env: %q is no variable: write NAME=value", kv)
		}
	}
	for _, l := range s.Process.Rlimits {
		if l.Soft > l.Hard {
			return fmt.Errorf("process.rlimits: %s: the soft limit %d is above the hard limit %d", l.Type, l.Soft, l.Hard)
		}
	}
	if caps := s.Process.Capabilities; caps != nil {
		for _, name := range caps.Bounding {
			if !slices.Contains(knownCaps, name) {
				return fmt.Errorf("process.capabilities.bounding: %q is not a capability that Linux has", name)
			}
		}
	}
	return nil
}

func checkLinux(s *specs.Spec) error {
	if s.Linux == nil {
		return nil
	}
	if err := CheckSysctls(s.Linux.Sysctl, true, true, true); err != nil {
		return fmt.Errorf("linux.sysctl: %w", err)
	}
	filter := s.Linux.Seccomp
	if filter == nil {
		return nil
	}
	file := profileFile{LinuxSeccomp: *filter}
	for _, call := range filter.Syscalls {
		file.Syscalls = append(file.Syscalls, ruleFile{LinuxSyscall: call})
	}
	if err := file.check(); err != nil {
		return fmt.Errorf("linux.seccomp: %w", err)
	}
	return nil
}

// Sysctls returns those of the base that belong to namespaces which a pod of the handler has of its own, but for those
// that it sets itself.
func (b *Base) Sysctls(own map[string]string, net, ipc, uts bool) map[string]string {
	said, out := map[string]bool{}, map[string]string{}
	for name := range own {
		if p, err := SysctlPath(name); err == nil { // two names may be of one sysctl
			said[p] = true
		}
	}
	for name, value := range b.spec().Linux.Sysctl {
		if p, err := SysctlPath(name); err == nil && !said[p] && checkSysctl(name, net, ipc, uts) == nil {
			out[name] = value
		}
	}
	return out
}

// UnmarshalJSON is ParseBase.
func (b *Base) UnmarshalJSON(data []byte) error {
	parsed, err := ParseBase(data)
	if err == nil {
		*b = *parsed
	}
	return err
}

// Equal reports whether two bases are the same text; nil is equal to nil alone.
func (b *Base) Equal(other *Base) bool {
	if b == nil || other == nil {
		return b == other
	}
	return bytes.Equal(b.json, other.json)
}

// spec is a copy of the base, which shares nothing; an empty one where there is none.
func (b *Base) spec() *specs.Spec {
	s := &specs.Spec{}
	if b != nil {
		_ = json.Unmarshal(b.json, s) // ParseBase has read it
	}
	if s.Process == nil {
		s.Process = &specs.Process{}
	}
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	for i := range s.Mounts { // as the others are, with which they are compared
		s.Mounts[i].Destination = path.Clean(s.Mounts[i].Destination)
	}
	return s
}

// baseOwnMounts are those of the base, but for the /run of the spec that tools print, which would hide what an image
// has there.
func (b *build) baseOwnMounts() []specs.Mount {
	at := targetsOf(b.baseMounts())
	return slices.DeleteFunc(b.base.Mounts, func(m specs.Mount) bool {
		return m.Destination == "/run" && m.Type == "tmpfs" || at[m.Destination]
	})
}

// underBase puts the rest of the base under what is built.
func (b *build) underBase() error {
	linux, base := b.out.Linux, b.base.Linux
	b.out.Hooks = b.base.Hooks
	for _, d := range base.Devices {
		if _, taken := b.deviceAt[d.Path]; !taken {
			b.putDevice(d)
		}
	}
	if linux.RootfsPropagation == "" {
		linux.RootfsPropagation = base.RootfsPropagation
	}
	linux.Personality, linux.IntelRdt = base.Personality, base.IntelRdt
	for k, v := range b.base.Annotations {
		if _, said := b.out.Annotations[k]; !said {
			putAnnotation(b.out.Annotations, k, v, true)
		}
	}
	if base.Resources == nil {
		return nil
	}
	rules := deviceRules(linux.Resources.Devices, base.Resources.Devices)
	if err := under(linux.Resources, base.Resources); err != nil {
		return fmt.Errorf("base spec: resources: %w", err)
	}
	linux.Resources.Devices = rules
	return nil
}

// deviceRules puts the base's rules for devices after the first of ours, which is for all devices, and before those of
// the request: the last that fits counts. Where ours allow all, as in a privileged container, the base's say nothing.
func deviceRules(ours, base []specs.LinuxDeviceCgroup) []specs.LinuxDeviceCgroup {
	if ours[0].Allow {
		return ours
	}
	for i := len(base) - 1; i >= 0; i-- {
		if deniesAll(base[i]) { // tools print specs that begin so; ours do, too
			base = base[i+1:]
			break
		}
	}
	return slices.Concat(ours[:1], base, ours[1:])
}

func deniesAll(r specs.LinuxDeviceCgroup) bool {
	every := (r.Type == "" || r.Type == "a") && r.Major == nil && r.Minor == nil
	return every && !r.Allow && strings.Contains(r.Access, "r") && strings.Contains(r.Access, "w") &&
		strings.Contains(r.Access, "m")
}

// under fills what ours leaves open from base, as deep as both are objects.
func under[T any](ours, base *T) error {
	var a, b map[string]any
	for _, x := range []struct {
		from *T
		to   *map[string]any
	}{{ours, &a}, {base, &b}} {
		data, err := json.Marshal(x.from)
		if err != nil {
			return err
		}
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber() // a limit may be larger than a float is exact
		if err := dec.Decode(x.to); err != nil {
			return err
		}
	}
	fill(a, b)
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, ours)
}

func fill(ours, base map[string]any) {
	for k, v := range base {
		have, said := ours[k]
		if !said {
			ours[k] = v
			continue
		}
		inner, ok := have.(map[string]any)
		if below, both := v.(map[string]any); ok && both {
			fill(inner, below)
		}
	}
}
