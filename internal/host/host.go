// Package host says what this machine is and can do: kernel, cgroups, security modules, the powers of the daemon
// itself, and which OCI runtimes really work here. Facts are probed once and do not change while the daemon lives.
package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"
)

// Facts is what was probed.
type Facts struct {
	Kernel   string // as uname -r says it
	Arch     string // as Go names it
	BootID   string // another one after each boot
	Hostname string
	Systemd  bool // systemd is this machine's init

	Cgroup         CgroupMode
	CgroupDriver   string   // SystemdDriver or CgroupfsDriver: the one in force, see ChooseDriver
	Controllers    []string // the cgroup controllers that can be used, sorted
	SwapAccounting bool     // the memory controller limits swap
	HugepageSizes  []string // that the hugetlb controller limits ("2MB"); empty without that controller

	LSMs             []string // the active security modules; empty also where securityfs is not mounted
	AppArmor         bool     // the kernel enforces AppArmor
	AppArmorProfiles []string // the profiles that are loaded
	SELinux          bool     // the kernel has SELinux on, with a policy
	Seccomp          bool     // the kernel filters system calls

	BoundingCaps []string            // what the daemon can give to a container ("CAP_CHOWN")
	HasResource  bool                // the daemon has CAP_SYS_RESOURCE
	OOMScoreAdj  int                 // the daemon's own
	Rlimits      []specs.POSIXRlimit // the daemon's own limits
	Overlay      bool                // the kernel has the overlay file system
}

// Probe looks. An error is of something that every Linux has, such as /proc: nothing works without it.
func Probe() (Facts, error) {
	f := Facts{Arch: runtime.GOARCH, Systemd: exists("/run/systemd/system"), Overlay: hasOverlay()}
	for _, probe := range []func(*Facts) error{identity, cgroups, security, powers, limits} {
		if err := probe(&f); err != nil {
			return Facts{}, fmt.Errorf("probe the host: %w", err)
		}
	}
	return f, nil
}

func identity(f *Facts) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	f.Kernel, f.Hostname = unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Nodename[:])
	var err error
	f.BootID, err = line("/proc/sys/kernel/random/boot_id")
	return err
}

// security probes the security modules. Their files are missing where they are.
func security(f *Facts) error {
	active, err := optional("/sys/kernel/security/lsm")
	if err != nil {
		return err
	}
	f.LSMs = split(active, ",")
	enabled, err := optional("/sys/module/apparmor/parameters/enabled")
	if err != nil {
		return err
	}
	if f.AppArmor = enabled == "Y"; f.AppArmor {
		loaded, err := optional("/sys/kernel/security/apparmor/profiles")
		if err != nil {
			return err
		}
		f.AppArmorProfiles = profileNames(loaded)
	}
	f.SELinux = SELinuxOn()
	actions, err := optional("/proc/sys/kernel/seccomp/actions_avail")
	f.Seccomp = slices.Contains(strings.Fields(actions), "errno")
	return err
}

// SELinuxOn reports whether the kernel has SELinux on, with a policy.
func SELinuxOn() bool { return isFS("/sys/fs/selinux", unix.SELINUX_MAGIC) && selinux.GetEnabled() }

// profileNames takes the modes off lines such as "name (enforce)".
func profileNames(text string) []string {
	var names []string
	for _, l := range split(text, "\n") {
		if i := strings.LastIndex(l, " ("); i > 0 {
			l = l[:i]
		}
		names = append(names, l)
	}
	return names
}

// hasOverlay asks the kernel, which loads the module if there is one.
func hasOverlay() bool {
	known, err := optional("/proc/filesystems")
	if err == nil && slices.Contains(strings.Fields(known), "overlay") {
		return true
	}
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// line reads a file of one line.
func line(path string) (string, error) {
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(data)), err
}

// optional reads a file that kernels may lack.
func optional(path string) (string, error) {
	text, err := line(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return "", nil
	}
	return text, err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// isFS reports whether path is on a file system of this type.
func isFS(path string, magic int64) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && int64(st.Type) == magic
}

// split is strings.Split that knows nothing in nothing.
func split(text, by string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, by)
}
