package spec

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SeccompProfile is a profile whose rules may still depend on capabilities, architecture and kernel.
type SeccompProfile struct{ seccomp.Seccomp }

// SeccompPath is the file of the profile that a container asks for, empty when it asks for none on the node. Read it, pass
// it through ParseSeccomp and put the result into Input.
func SeccompPath(sc *runtimeapi.LinuxContainerSecurityContext) (string, error) {
	want, err := seccompChoice(sc)
	if err != nil || want.GetProfileType() != runtimeapi.SecurityProfile_Localhost || sc.GetPrivileged() {
		return "", err
	}
	if !path.IsAbs(want.GetLocalhostRef()) {
		return "", fmt.Errorf("seccomp profile %q: localhost_ref must be an absolute path", want.GetLocalhostRef())
	}
	return want.GetLocalhostRef(), nil
}

// seccomp sets the filter. It comes after the capabilities, which the default profile depends on.
func (b *build) seccomp() error {
	want, err := seccompChoice(b.security)
	if err != nil || b.privileged || want.GetProfileType() == runtimeapi.SecurityProfile_Unconfined {
		return err
	}
	if !b.Host.Seccomp {
		return fmt.Errorf("seccomp profile %s: this host does not filter system calls", want.GetProfileType())
	}
	profile := b.Seccomp
	if want.GetProfileType() == runtimeapi.SecurityProfile_RuntimeDefault {
		profile = &SeccompProfile{*seccomp.DefaultProfile()}
	}
	if profile == nil {
		return fmt.Errorf("seccomp profile %s was not loaded", want.GetLocalhostRef())
	}
	b.out.Linux.Seccomp, err = profile.expand(b.out.Process.Capabilities.Bounding, b.Host)
	return err
}

// seccompChoice reads the field, or the deprecated path in its place. Neither means unconfined, as CRI says.
func seccompChoice(sc *runtimeapi.LinuxContainerSecurityContext) (*runtimeapi.SecurityProfile, error) {
	if p := sc.GetSeccomp(); p != nil {
		return p, nil
	}
	//lint:ignore SA1019 old clients send it
	return oldProfile(sc.GetSeccompProfilePath(), "seccomp_profile_path", runtimeapi.SecurityProfile_Unconfined)
}

// oldProfile reads the deprecated text form of a profile choice.
func oldProfile(text, field string, absent runtimeapi.SecurityProfile_ProfileType) (*runtimeapi.SecurityProfile, error) {
	ref, local := strings.CutPrefix(text, "localhost/")
	switch {
	case text == "":
		return &runtimeapi.SecurityProfile{ProfileType: absent}, nil
	case text == "runtime/default" || text == "docker/default":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case text == "unconfined":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case local && ref != "":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}, nil
	}
	return nil, fmt.Errorf("%s %q: it is runtime/default, unconfined or localhost/<profile>", field, text)
}

// expand settles the rules that depend on what the container may do and where it runs.
func (p *SeccompProfile) expand(caps []string, host Host) (*specs.LinuxSeccomp, error) {
	arch := host.Arch
	if arch == "" {
		arch = runtime.GOARCH
	}
	kernel, err := parseKernel(host.KernelVersion)
	if err != nil {
		return nil, err
	}
	out := p.LinuxSeccomp
	out.Architectures = slices.Clone(out.Architectures)
	for _, m := range p.ArchMap {
		if m.Arch == seccompArch[arch] {
			out.Architectures = append(append(out.Architectures, m.Arch), m.SubArches...)
		}
	}
	out.Syscalls = nil
	for _, rule := range p.Syscalls {
		f := facts{caps, ruleArch(arch), kernel}
		if !f.excluded(rule.Excludes) && f.included(rule.Includes) {
			out.Syscalls = append(out.Syscalls, ruleSyscall(rule))
		}
	}
	return &out, nil
}

func ruleSyscall(rule *seccomp.Syscall) specs.LinuxSyscall {
	call := rule.LinuxSyscall
	//lint:ignore SA1019 profiles of old have it
	if name := rule.Name; name != "" {
		call.Names = []string{name}
	}
	return call
}

// facts is what a rule's conditions are checked against.
type facts struct {
	caps   []string
	arch   string
	kernel seccomp.KernelVersion
}

// included wants every condition to hold.
func (f facts) included(c *seccomp.Filter) bool {
	if c == nil {
		return true
	}
	if len(c.Arches) > 0 && !slices.Contains(c.Arches, f.arch) || c.MinKernel != nil && !f.atLeast(*c.MinKernel) {
		return false
	}
	return !slices.ContainsFunc(c.Caps, func(name string) bool { return !slices.Contains(f.caps, name) })
}

// excluded is satisfied by any condition that holds.
func (f facts) excluded(c *seccomp.Filter) bool {
	if c == nil {
		return false
	}
	return slices.Contains(c.Arches, f.arch) || c.MinKernel != nil && f.atLeast(*c.MinKernel) ||
		slices.ContainsFunc(c.Caps, func(name string) bool { return slices.Contains(f.caps, name) })
}

func (f facts) atLeast(v seccomp.KernelVersion) bool {
	return f.kernel.Kernel > v.Kernel || f.kernel.Kernel == v.Kernel && f.kernel.Major >= v.Major
}

func parseKernel(release string) (seccomp.KernelVersion, error) {
	var v seccomp.KernelVersion
	if n, _ := fmt.Sscanf(release, "%d.%d", &v.Kernel, &v.Major); n != 2 {
		return v, errors.New("kernel version " + release + ": seccomp rules depend on it and it cannot be read")
	}
	return v, nil
}

// ruleArch is the name that profiles use for an architecture of Go.
func ruleArch(goarch string) string {
	switch goarch {
	case "386":
		return "x86"
	case "loong64":
		return "loongarch64"
	case "mipsle":
		return "mipsel"
	case "mips64le":
		return "mipsel64"
	}
	return goarch
}

var seccompArch = map[string]specs.Arch{
	"386": specs.ArchX86, "amd64": specs.ArchX86_64, "arm": specs.ArchARM, "arm64": specs.ArchAARCH64,
	"loong64": specs.ArchLOONGARCH64, "mips": specs.ArchMIPS, "mipsle": specs.ArchMIPSEL, "mips64": specs.ArchMIPS64,
	"mips64le": specs.ArchMIPSEL64, "ppc64": specs.ArchPPC64, "ppc64le": specs.ArchPPC64LE, "riscv64": specs.ArchRISCV64,
	"s390x": specs.ArchS390X,
}
