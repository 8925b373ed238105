package host

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestDefaultSeccomp: what a filter must let through and must not, whichever release of the library makes it.
func TestDefaultSeccomp(t *testing.T) {
	none, admin := DefaultSeccomp(nil), DefaultSeccomp([]string{"CAP_SYS_ADMIN"})
	for _, f := range []*specs.LinuxSeccomp{none, admin} {
		if f.DefaultAction != specs.ActErrno {
			t.Errorf("what no rule names is %s", f.DefaultAction)
		}
		for _, name := range []string{"read", "execve", "ptrace", "io_uring_enter"} {
			if got, want := allowed(f, name), name != "io_uring_enter"; got != want {
				t.Errorf("%s is allowed: %v", name, got)
			}
		}
		open := []uint64{
			unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET,
			unix.AF_KEY, unix.AF_PPPOX, unix.AF_CAN, unix.AF_BLUETOOTH, unix.AF_XDP,
		}
		if len(open) != len(SocketFamilies()) {
			t.Errorf("the families that are open are %v", SocketFamilies())
		}
		for family := range uint64(unix.AF_MAX + 10) {
			for _, call := range []string{"socket", "socketpair"} {
				if got, want := allowed(f, call, family), slices.Contains(open, family); got != want {
					t.Errorf("%s(%d) is allowed: %v", call, family, got)
				}
			}
		}
		if !allowed(f, "socketcall") {
			t.Error("socketcall is refused")
		}
	}
	for _, name := range []string{"mount", "unshare", "setns", "bpf"} {
		if allowed(none, name) || !allowed(admin, name) {
			t.Errorf("%s: %v without CAP_SYS_ADMIN, %v with it", name, allowed(none, name), allowed(admin, name))
		}
	}
	if allowed(none, "clone", unix.CLONE_NEWUSER) || !allowed(none, "clone", unix.CLONE_VM) ||
		!allowed(admin, "clone", unix.CLONE_NEWUSER) {
		t.Error("clone: a new namespace needs CAP_SYS_ADMIN, a thread does not")
	}
	if len(none.Architectures) == 0 {
		t.Error("the filter is for no architecture")
	}
}

// allowed is whether the rules let a call through, as libseccomp reads them: what no rule matches meets the default.
func allowed(f *specs.LinuxSeccomp, name string, args ...uint64) bool {
	return slices.ContainsFunc(f.Syscalls, func(r specs.LinuxSyscall) bool {
		return r.Action == specs.ActAllow && slices.Contains(r.Names, name) &&
			!slices.ContainsFunc(r.Args, func(a specs.LinuxSeccompArg) bool { return !holds(a, args) })
	})
}

func holds(a specs.LinuxSeccompArg, args []uint64) bool {
	if int(a.Index) >= len(args) {
		return false
	}
	switch v := args[a.Index]; a.Op {
	case specs.OpLessThan:
		return v < a.Value
	case specs.OpLessEqual:
		return v <= a.Value
	case specs.OpEqualTo:
		return v == a.Value
	case specs.OpGreaterEqual:
		return v >= a.Value
	case specs.OpGreaterThan:
		return v > a.Value
	case specs.OpNotEqual:
		return v != a.Value
	case specs.OpMaskedEqual:
		return v&a.Value == a.ValueTwo
	}
	return false
}
