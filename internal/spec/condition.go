package spec

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// SeccompProfile is a profile whose rules may still depend on capabilities, architecture and kernel.
type SeccompProfile struct {
	filter specs.LinuxSeccomp // all but the rules
	arches []archRule
	rules  []rule
}

// archRule is an architecture, with those that a program on it may switch to.
type archRule struct {
	Arch      specs.Arch   `json:"architecture"`
	SubArches []specs.Arch `json:"subArchitectures"`
}

// rule is a rule that holds if its conditions do.
type rule struct {
	call               specs.LinuxSyscall
	includes, excludes *condition
}

// condition names capabilities, architectures and the oldest kernel.
type condition struct {
	Caps      []string       `json:"caps"`
	Arches    []string       `json:"arches"`
	MinKernel *kernelVersion `json:"minKernel"`
}

// expand settles the rules that depend on what the container may do and where it runs.
func (p *SeccompProfile) expand(caps []string, host Host) (*specs.LinuxSeccomp, error) {
	kernel, err := hostKernel(host.KernelVersion)
	if err != nil {
		return nil, err
	}
	arch, out := host.arch(), p.filter
	out.Architectures = slices.Clone(out.Architectures)
	for _, m := range p.arches {
		if m.Arch == seccompArch[arch] {
			out.Architectures = append(append(out.Architectures, m.Arch), m.SubArches...)
		}
	}
	f := facts{caps, ruleArch(arch), kernel}
	for _, r := range p.rules {
		if !f.excluded(r.excludes) && f.included(r.includes) {
			out.Syscalls = append(out.Syscalls, r.call)
		}
	}
	return &out, nil
}

// facts is what a rule's conditions are checked against.
type facts struct {
	caps   []string
	arch   string
	kernel kernelVersion
}

// included wants every condition to hold.
func (f facts) included(c *condition) bool {
	if c == nil {
		return true
	}
	if len(c.Arches) > 0 && !slices.Contains(c.Arches, f.arch) || c.MinKernel != nil && !f.atLeast(*c.MinKernel) {
		return false
	}
	return !slices.ContainsFunc(c.Caps, func(name string) bool { return !slices.Contains(f.caps, name) })
}

// excluded is satisfied by any condition that holds.
func (f facts) excluded(c *condition) bool {
	if c == nil {
		return false
	}
	return slices.Contains(c.Arches, f.arch) || c.MinKernel != nil && f.atLeast(*c.MinKernel) ||
		slices.ContainsFunc(c.Caps, func(name string) bool { return slices.Contains(f.caps, name) })
}

func (f facts) atLeast(v kernelVersion) bool {
	return f.kernel.major > v.major || f.kernel.major == v.major && f.kernel.minor >= v.minor
}

// kernelVersion is all that a rule may ask of a kernel: the 6 and the 12 of 6.12.1.
type kernelVersion struct{ major, minor uint64 }

// UnmarshalText reads "6.12", which is how profiles write it. Nothing is every kernel.
func (v *kernelVersion) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	major, minor, _ := strings.Cut(string(text), ".")
	var err, err2 error
	v.major, err = strconv.ParseUint(major, 10, 32)
	v.minor, err2 = strconv.ParseUint(minor, 10, 32)
	if err != nil || err2 != nil {
		return fmt.Errorf("minKernel %q: it is two numbers with a dot between them", text)
	}
	return nil
}

func hostKernel(release string) (kernelVersion, error) {
	var v kernelVersion
	if n, _ := fmt.Sscanf(release, "%d.%d", &v.major, &v.minor); n != 2 {
		return v, errors.New("kernel version " + release + ": seccomp rules depend on it and it cannot be read")
	}
	return v, nil
}

func (h Host) arch() string {
	if h.Arch == "" {
		return runtime.GOARCH
	}
	return h.Arch
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
