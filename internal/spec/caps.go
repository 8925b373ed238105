package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// knownCaps is every capability of Linux 5.10 and later, in the kernel's order. An older kernel is not supported, so a
// name that is not here is a mistake.
var knownCaps = strings.Fields(`
	CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID CAP_SETUID CAP_SETPCAP
	CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW CAP_IPC_LOCK CAP_IPC_OWNER
	CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_NICE
	CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD CAP_LEASE CAP_AUDIT_WRITE CAP_AUDIT_CONTROL CAP_SETFCAP
	CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_AUDIT_READ CAP_PERFMON CAP_BPF
	CAP_CHECKPOINT_RESTORE`)

// defaultCaps is what a container has unless it asks for more or less, or its handler's base spec says otherwise: the
// set every runtime agrees on.
var defaultCaps = strings.Fields(`
	CAP_CHOWN CAP_DAC_OVERRIDE CAP_FSETID CAP_FOWNER CAP_MKNOD CAP_NET_RAW CAP_SETGID CAP_SETUID CAP_SETFCAP CAP_SETPCAP
	CAP_NET_BIND_SERVICE CAP_SYS_CHROOT CAP_KILL CAP_AUDIT_WRITE`)

// capabilities decides what the container may do. Ambient capabilities are set only where the request names them: a
// process that is not root has none otherwise, as in containerd, because what "non-root with added capabilities" should
// mean was never defined.
func (b *build) capabilities() error {
	want, err := b.wantedCaps()
	if err != nil {
		return err
	}
	set := b.clampCaps(want)
	ambient, err := capNames(b.security.GetCapabilities().GetAddAmbientCapabilities())
	if err != nil {
		return err
	}
	ambient = b.clampCaps(ambient)
	for _, c := range ambient {
		set = addCap(set, c)
	}
	slices.SortFunc(set, capOrder)
	slices.SortFunc(ambient, capOrder)
	b.out.Process.Capabilities = &specs.LinuxCapabilities{
		Bounding: set, Effective: set, Permitted: set, Inheritable: ambient, Ambient: ambient,
	}
	return nil
}

// wantedCaps is the set asked for. "ALL" is what this daemon can give, so it is never clamped and never warned about.
func (b *build) wantedCaps() ([]string, error) {
	asked := b.security.GetCapabilities()
	add, err := capNames(asked.GetAddCapabilities())
	if err != nil {
		return nil, err
	}
	drop, err := capNames(asked.GetDropCapabilities())
	if err != nil {
		return nil, err
	}
	all := b.availableCaps()
	if b.privileged {
		return all, nil
	}
	want := b.usualCaps()
	if slices.Contains(add, "ALL") {
		want = slices.Clone(all)
	}
	if slices.Contains(drop, "ALL") {
		want = nil
	}
	for _, c := range add {
		want = addCap(want, c)
	}
	return slices.DeleteFunc(want, func(c string) bool { return c == "ALL" || slices.Contains(drop, c) }), nil
}

// usualCaps is what a container has that names no capabilities: those of the base spec, where it says any. Of its sets
// the bounding one counts, which is what a program of root's has once it is executed.
func (b *build) usualCaps() []string {
	if caps := b.base.Process.Capabilities; caps != nil {
		return slices.Clone(caps.Bounding)
	}
	return slices.Clone(defaultCaps)
}

// Withheld are those of the usual capabilities that the base keeps from containers which name none.
func (b *Base) Withheld() []string {
	caps := b.spec().Process.Capabilities
	if caps == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(defaultCaps), func(c string) bool { return slices.Contains(caps.Bounding, c) })
}

// availableCaps is what the daemon can hand on. A pod in a user namespace of its own has every capability there.
func (b *build) availableCaps() []string {
	if b.Paths.UserNS != "" {
		return knownCaps
	}
	return b.Host.BoundingCaps
}

// clampCaps drops what the daemon does not have: a runtime that is asked for it would refuse the whole container.
func (b *build) clampCaps(want []string) []string {
	var out, lost []string
	all := b.availableCaps()
	for _, c := range want {
		if slices.Contains(all, c) {
			out = addCap(out, c)
		} else {
			lost = addCap(lost, c)
		}
	}
	if len(lost) > 0 {
		b.warn("left out what the daemon itself does not have: %s", strings.Join(lost, ", "))
	}
	return out
}

// capNames reads names as people write them: in any case, with or without CAP_.
func capNames(names []string) ([]string, error) {
	var out []string
	for _, name := range names {
		c := strings.ToUpper(name)
		if c != "ALL" && !strings.HasPrefix(c, "CAP_") {
			c = "CAP_" + c
		}
		if c != "ALL" && !slices.Contains(knownCaps, c) {
			return nil, fmt.Errorf("capability %q is not one that Linux has", name)
		}
		out = append(out, c)
	}
	return out, nil
}

func addCap(set []string, c string) []string {
	if slices.Contains(set, c) {
		return set
	}
	return append(set, c)
}

func capOrder(a, b string) int { return slices.Index(knownCaps, a) - slices.Index(knownCaps, b) }
