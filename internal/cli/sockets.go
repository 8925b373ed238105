package cli

import (
	"slices"
	"strings"

	"berth/internal/apparmor"
	"berth/internal/config"
	"berth/internal/selinux"
)

// muxed are the architectures, as Go names them, on which programs may make sockets by socketcall.
var muxed = []string{"386", "amd64", "mips", "mips64", "mips64le", "mipsle", "ppc64", "ppc64le", "s390x"}

// socketFamilies tells whether containers reach the socket families that none of them needs.
func (m machine) socketFamilies() diagnosis {
	const subject, closed = "socket families", "those that no container needs are closed by "
	open, mode := m.openedByPolicy()
	switch {
	case !m.facts.Seccomp && !m.facts.AppArmor && !m.facts.SELinux:
		return diagnosis{subject, warning, "containers reach all that the kernel has, also AF_ALG and AF_VSOCK",
			"see seccomp above"}
	case m.facts.AppArmor && m.config.AppArmor != config.AppArmorOff && m.apparmor().Result == fine:
		return diagnosis{subject, fine, closed + "the AppArmor profile " + apparmor.DefaultName, ""}
	case mode == "enforcing" && len(open) == 0:
		return diagnosis{subject, fine, closed + "the SELinux policy", ""}
	case !slices.Contains(muxed, m.facts.Arch):
		return diagnosis{subject, fine, closed + "the default seccomp filter", ""}
	case m.socketcallDenied():
		return diagnosis{subject, fine, closed + "the default seccomp filter, and so is the network to 32-bit programs", ""}
	}
	text := "32-bit system calls reach AF_ALG, AF_VSOCK and the like, which the default seccomp filter does not see"
	if mode != "" {
		text += "; the SELinux policy is " + mode
		if len(open) > 0 {
			text += " and allows " + strings.Join(open, ", ")
		}
	}
	return diagnosis{subject, warning, text, "turn AppArmor on, or have the SELinux policy deny them, or set " +
		`seccomp.socketcall = "deny" for all handlers whose pods need no network in 32-bit programs: see docs/security.md`}
}

// openedByPolicy are the classes of exotic sockets that the policy lets containers make, and what the kernel does with
// a policy; "" where containers have no labels.
func (m machine) openedByPolicy() (open []string, mode string) {
	if !m.facts.SELinux || m.config.SELinux == config.SELinuxOff {
		return nil, ""
	}
	if d := m.daemon.SELinux; d != nil && d.Gives == "" {
		return nil, ""
	}
	node, err := selinux.Open()
	if err != nil {
		return nil, ""
	}
	open, err = node.OpenSockets()
	if err != nil {
		return nil, "not to be asked: " + err.Error()
	}
	return open, selinux.Mode()
}

// socketcallDenied says that no handler lets its containers call it. The default must be one of those that the
// configuration names.
func (m machine) socketcallDenied() bool {
	r := m.config.Runtimes
	for _, h := range r.Handlers {
		if h.Socketcall != config.SocketcallDeny {
			return false
		}
	}
	_, named := r.Handlers[r.Default]
	return named && m.facts.Seccomp
}
