package spec

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// SeccompPath is the file of the profile that a container asks for, empty when it asks for none on the node. Read it,
// pass it through ParseSeccomp and put the result into Input.
func SeccompPath(sc *runtimeapi.LinuxContainerSecurityContext) (string, error) {
	want, err := SeccompChoice(sc)
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
	want, err := SeccompChoice(b.security)
	if err != nil || b.privileged {
		return err
	}
	if want.GetProfileType() == runtimeapi.SecurityProfile_Unconfined {
		return b.baseSeccomp()
	}
	if !b.Host.Seccomp {
		return fmt.Errorf("seccomp profile %s: this host does not filter system calls", want.GetProfileType())
	}
	caps := b.out.Process.Capabilities.Bounding
	switch {
	case want.GetProfileType() == runtimeapi.SecurityProfile_RuntimeDefault:
		b.out.Linux.Seccomp = defaultSeccomp(b.Host, b.Handler, b.Project, caps)
	case b.Seccomp == nil:
		err = fmt.Errorf("seccomp profile %s was not loaded", want.GetLocalhostRef())
	default:
		b.out.Linux.Seccomp, err = b.Seccomp.expand(caps, b.Host)
	}
	return err
}

// baseSeccomp sets the filter of the base spec, where there is one. Kubelets send Unconfined for a pod that names no
// profile, too, so the filter holds for both.
func (b *build) baseSeccomp() error {
	filter := b.base.Linux.Seccomp
	if filter != nil && !b.Host.Seccomp {
		return fail.New(errdefs.ErrFailedPrecondition, "base spec: linux.seccomp: this host does not filter system calls")
	}
	b.out.Linux.Seccomp = filter
	return nil
}

// defaultSeccomp is the filter for RuntimeDefault of a container with these capabilities, as its handler wants it. With
// project the container's writable layer is one.
func defaultSeccomp(h Host, c Handler, project bool, caps []string) *specs.LinuxSeccomp {
	filter := h.DefaultSeccomp(caps)
	if c.NoSocketcall {
		denySocketcall(filter)
	}
	keepInProject(filter, h.arch(), project)
	return filter
}

// denySocketcall refuses socketcall as a kernel does that lacks it. It takes a rule of its own: libseccomp reads a
// rule for socket or connect as one for the like socketcall too, and one that names no argument goes before those.
// Runtimes leave out rules that do what the filter does by default, so it does something else.
func denySocketcall(filter *specs.LinuxSeccomp) {
	for i, r := range filter.Syscalls {
		filter.Syscalls[i].Names = slices.DeleteFunc(slices.Clone(r.Names), func(name string) bool {
			return name == socketcall
		})
	}
	filter.Syscalls = append(filter.Syscalls, specs.LinuxSyscall{
		Names: []string{socketcall}, Action: specs.ActErrno, ErrnoRet: new(uint(enosys)),
	})
}

const (
	socketcall = "socketcall"
	enosys     = 38 // on all architectures but MIPS
)

// SeccompChoice reads the field, or the deprecated path in its place. Neither means unconfined, as CRI says.
func SeccompChoice(sc *runtimeapi.LinuxContainerSecurityContext) (*runtimeapi.SecurityProfile, error) {
	if p := sc.GetSeccomp(); p != nil {
		return p, nil
	}
	//lint:ignore SA1019 old clients send it
	return oldProfile(sc.GetSeccompProfilePath(), "seccomp_profile_path", runtimeapi.SecurityProfile_Unconfined)
}

// oldProfile reads the deprecated text form of a profile choice.
func oldProfile(text, field string, absent runtimeapi.SecurityProfile_ProfileType) (
	*runtimeapi.SecurityProfile, error) {
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
