package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/thread"
)

// SysctlError says that a sysctl cannot be set for a pod.
type SysctlError struct {
	Name, Value string
	Err         error
}

func (e *SysctlError) Error() string {
	return fmt.Sprintf("sysctl %s=%s: %v", e.Name, e.Value, e.Err)
}

// Unwrap returns the kind and the cause.
func (e *SysctlError) Unwrap() []error { return []error{errdefs.ErrInvalidArgument, e.Err} }

// sysctl is one to set: its file below /proc/sys, and whether it is one of an interface that CNI will make.
type sysctl struct {
	file  string
	later bool
}

// sysctl checks that a sysctl is one of the pod's own namespaces, so that setting it cannot change the host.
func (ns Namespaces) sysctl(name string) (sysctl, error) {
	file := sysctlFile(name)
	fail := func(why string) (sysctl, error) {
		return sysctl{}, &SysctlError{name, ns.Sysctls[name], errors.New(why)}
	}
	if !filepath.IsLocal(file) || filepath.Clean(file) != file {
		return fail("not a sysctl's name")
	}
	parts := strings.Split(file, "/")
	switch {
	case parts[0] == "net" && len(parts) > 1:
		if ns.Net == "" {
			return fail("the pod has the host's network namespace")
		}
	case isIPC(file):
		if ns.IPC == "" {
			return fail("the pod has the host's IPC namespace")
		}
	case file == "kernel/hostname" || file == "kernel/domainname":
		if ns.UTS == "" {
			return fail("the pod has the host's UTS namespace")
		}
	default:
		return fail("it belongs to no namespace that a pod has of its own: it can be set for the whole host only")
	}
	return sysctl{file, ofInterface(parts)}, nil
}

// sysctlFile turns a name into a path: as sysctl(8), the separator is whichever of . and / comes first, and the other
// one stands for it within a part, as in net.ipv4.conf.eth0/100.forwarding.
func sysctlFile(name string) string {
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '.' {
		return strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	return name
}

func isIPC(file string) bool {
	own := []string{"kernel/msgmax", "kernel/msgmnb", "kernel/msgmni", "kernel/sem", "kernel/auto_msgmni",
		"kernel/msg_next_id", "kernel/sem_next_id"}
	return slices.Contains(own, file) || strings.HasPrefix(file, "kernel/shm") || strings.HasPrefix(file, "fs/mqueue/")
}

// ofInterface reports whether a sysctl is one of an interface that is not there from the start, such as
// net/ipv4/conf/eth0/rp_filter.
func ofInterface(parts []string) bool {
	if len(parts) < 5 || (parts[2] != "conf" && parts[2] != "neigh") {
		return len(parts) >= 4 && parts[1] == "mpls" && parts[2] == "conf" && parts[3] != "lo"
	}
	return !slices.Contains([]string{"all", "default", "lo"}, parts[3])
}

// apply sets the chosen sysctls in the calling thread's namespaces.
func (ns Namespaces) apply(chosen func(sysctl) bool) error {
	for name, value := range ns.Sysctls {
		s, err := ns.sysctl(name)
		if err != nil {
			return err
		}
		if !chosen(s) {
			continue
		}
		if err := ns.write(s.file, value); err != nil {
			return &SysctlError{name, value, err}
		}
	}
	return nil
}

// applyDefaults sets the defaults in the calling thread's namespaces, before the pod's own.
func (ns Namespaces) applyDefaults() {
	for name, value := range ns.Defaults {
		if s, err := ns.sysctl(name); err == nil && !s.later {
			_ = ns.write(s.file, value) // one that the kernel lacks changes nothing for a pod that did not ask for it
		}
	}
}

// write sets a sysctl. Those of an IPC namespace that belongs to a user namespace are root's there, and to nobody's
// else.
func (ns Namespaces) write(file, value string) error {
	uid, gid, ok := ns.IDs.Host(0, 0)
	if ns.User == "" || !ok || !isIPC(file) {
		return writeSysctl(file, value)
	}
	if err := as(uid, gid); err != nil {
		return err
	}
	return errors.Join(writeSysctl(file, value), as(0, 0))
}

// as gives the calling thread alone other effective ids.
func as(uid, gid uint32) error {
	const keep = ^uintptr(0)
	steps := [2][2]uintptr{{unix.SYS_SETRESGID, uintptr(gid)}, {unix.SYS_SETRESUID, uintptr(uid)}}
	if uid == 0 { // the power to take a group comes back with root
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, s := range steps {
		if _, _, e := unix.RawSyscall(s[0], keep, s[1], keep); e != 0 {
			return fmt.Errorf("become %d:%d: %w", uid, gid, e)
		}
	}
	return nil
}

func writeSysctl(file, value string) error {
	f, err := os.OpenFile(filepath.Join("/proc/sys", file), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("this kernel has no such sysctl in a pod's namespaces")
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	var path *fs.PathError
	if errors.As(err, &path) {
		return fmt.Errorf("the kernel refuses the value: %w", path.Err)
	}
	return err
}

// SetInterfaceSysctls sets those sysctls that belong to interfaces of the pod, such as net.ipv4.conf.eth0.rp_filter.
// Call it after Attach has made them. It may be repeated, and costs nothing where there are none.
func SetInterfaceSysctls(ns Namespaces) error {
	later := false
	for name := range ns.Sysctls {
		s, err := ns.sysctl(name)
		if err != nil {
			return fmt.Errorf("set sysctls: %w", err)
		}
		later = later || s.later
	}
	if !later {
		return nil
	}
	return thread.Run(func() error {
		if err := join(ns.Net, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("set sysctls: %w", err)
		}
		return ns.apply(func(s sysctl) bool { return s.later })
	})
}
