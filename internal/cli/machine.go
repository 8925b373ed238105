package cli

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/config"
)

// machine is what the doctor looks at. root is where /proc and /sys are.
type machine struct {
	root   string
	config *config.Config
}

func (m machine) user() diagnosis {
	if os.Geteuid() != 0 {
		return diagnosis{"user", broken, "this is not root, so some of what follows may be wrong", "run it as root"}
	}
	return diagnosis{"user", fine, "root", ""}
}

// The oldest kernel, and the one from which on nothing is missed.
var oldestKernel, fullKernel = [2]int{5, 10}, [2]int{5, 19}

func (m machine) kernel() diagnosis {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return diagnosis{"kernel", warning, "its version is unknown: " + err.Error(), ""}
	}
	return kernelDiagnosis(unix.ByteSliceToString(u.Release[:]))
}

func kernelDiagnosis(release string) diagnosis {
	var v [2]int
	if _, err := fmt.Sscanf(release, "%d.%d", &v[0], &v[1]); err != nil {
		return diagnosis{"kernel", warning, "no version can be read from " + release, ""}
	}
	switch {
	case slices.Compare(v[:], oldestKernel[:]) < 0:
		return diagnosis{"kernel", broken, release + " is too old", "5.10 is the minimum; install a newer one"}
	case slices.Compare(v[:], fullKernel[:]) < 0:
		return diagnosis{"kernel", warning, release + " has no id-mapped overlays, so pods with a user namespace cannot run", "5.19 has them"}
	}
	return diagnosis{"kernel", fine, release, ""}
}

func (m machine) overlay() diagnosis {
	known, err := os.ReadFile(filepath.Join(m.root, "proc/filesystems"))
	if err != nil {
		return diagnosis{"overlay", warning, err.Error(), ""}
	}
	if !slices.Contains(strings.Fields(string(known)), "overlay") {
		return diagnosis{"overlay", broken, "the kernel does not know overlay file systems", `"modprobe overlay", and put overlay into /etc/modules-load.d/berth.conf`}
	}
	return diagnosis{"overlay", fine, "known to the kernel", ""}
}

// The ways to mount cgroups.
const (
	cgroupUnified = "v2"
	cgroupHybrid  = "v1, with an empty v2 beside it (hybrid)"
	cgroupLegacy  = "v1"
	cgroupNone    = "none"
)

func (m machine) cgroupMode() string {
	at := func(dir string) int64 {
		var s unix.Statfs_t
		if unix.Statfs(filepath.Join(m.root, "sys/fs/cgroup", dir), &s) != nil {
			return 0
		}
		return s.Type
	}
	switch {
	case at("") == unix.CGROUP2_SUPER_MAGIC:
		return cgroupUnified
	case at("memory") != unix.CGROUP_SUPER_MAGIC:
		return cgroupNone
	case at("unified") == unix.CGROUP2_SUPER_MAGIC:
		return cgroupHybrid
	}
	return cgroupLegacy
}

func (m machine) cgroups() diagnosis {
	switch mode := m.cgroupMode(); mode {
	case cgroupUnified:
		return diagnosis{"cgroups", fine, mode, ""}
	case cgroupNone:
		return diagnosis{"cgroups", broken, "none with a memory controller is mounted at /sys/fs/cgroup",
			`"mount -t cgroup2 none /sys/fs/cgroup", or boot with systemd.unified_cgroup_hierarchy=1`}
	default:
		return diagnosis{"cgroups", warning, mode + ": it works, but Kubernetes is leaving it behind", "boot with systemd.unified_cgroup_hierarchy=1"}
	}
}

// runtimes looks at the handlers that are configured and at those that are found by name.
func (m machine) runtimes(ctx context.Context) []diagnosis {
	paths := map[string]string{}
	for name, h := range m.config.Runtimes.Handlers {
		paths[name] = h.Path
	}
	var found []diagnosis
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		if _, err := exec.LookPath(paths[name]); err != nil {
			found = append(found, diagnosis{"runtime " + name, broken, err.Error(), "install it, or take the handler out of the configuration"})
		}
	}
	usable := 0
	for _, name := range []string{"crun", "runc"} {
		if paths[name] == "" {
			paths[name] = name
		}
		path, err := exec.LookPath(paths[name])
		if err != nil {
			continue
		}
		d := m.runtime(ctx, name, path)
		if d.Result == fine {
			usable++
		}
		found = append(found, d)
	}
	if usable == 0 && len(m.config.Runtimes.Handlers) == 0 {
		found = append(found, diagnosis{"runtimes", broken, "neither crun nor runc can run containers here", `install one of them: "apt-get install runc"`})
	}
	return found
}

func (m machine) runtime(ctx context.Context, name, path string) diagnosis {
	subject := "runtime " + name
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return diagnosis{subject, broken, fmt.Sprintf("%s --version: %v", path, err), "install it anew"}
	}
	line, _, _ := strings.Cut(string(out), "\n")
	if name == "crun" && m.cgroupMode() == cgroupHybrid {
		return diagnosis{subject, warning, fmt.Sprintf("%s at %s refuses hybrid cgroups, and is passed over", line, path),
			"runc works here; so does crun once the machine boots with systemd.unified_cgroup_hierarchy=1"}
	}
	return diagnosis{subject, fine, fmt.Sprintf("%s at %s", line, path), ""}
}

func (m machine) monitor() diagnosis {
	path, err := m.config.MonitorPath()
	if err != nil {
		return diagnosis{"monitor", broken, err.Error(), "put berth-monitor beside berth"}
	}
	return diagnosis{"monitor", fine, path, ""}
}

// What a file system should have left.
const (
	littleSpace  = 1 << 30
	noSpace      = 64 << 20
	littleInodes = 10000
)

func (m machine) disk(what, dir string) diagnosis {
	subject, at := "disk", dir
	for {
		if _, err := os.Stat(at); err == nil || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at) // the daemon will make what is missing
	}
	var s unix.Statfs_t
	if err := unix.Statfs(at, &s); err != nil {
		return diagnosis{subject, broken, fmt.Sprintf("%s: %v", at, err), ""}
	}
	free := s.Bavail * uint64(s.Bsize)
	text := fmt.Sprintf("%s (%s): %s free", dir, what, bytesText(free))
	remedy := "remove what is not needed; berth images and berth rmi help"
	switch {
	case s.Flags&unix.ST_RDONLY != 0:
		return diagnosis{subject, broken, text + ", and read-only", "mount it writable, or configure another place"}
	case free < noSpace:
		return diagnosis{subject, broken, text, remedy}
	case free < littleSpace && what != "state":
		return diagnosis{subject, warning, text, remedy}
	case s.Files > 0 && s.Ffree < littleInodes:
		return diagnosis{subject, warning, fmt.Sprintf("%s, but only %d more files", text, s.Ffree), remedy}
	case s.Type == unix.OVERLAYFS_SUPER_MAGIC && what != "state":
		return diagnosis{subject, broken, text + ", but it is itself an overlay, which cannot carry another's upper directory",
			"put root on a real file system: root in the configuration, or a volume"}
	}
	return diagnosis{subject, fine, text, ""}
}
