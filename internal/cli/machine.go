package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/admin"
	"berth/internal/apparmor"
	"berth/internal/cgroup"
	"berth/internal/config"
	"berth/internal/host"
	"berth/internal/image/verifier"
	"berth/internal/limit"
	"berth/internal/rootfs"
	"berth/internal/selinux"
	"berth/internal/spec"
)

// machine is what the doctor looks at.
type machine struct {
	facts  host.Facts
	config *config.Config
	daemon admin.InfoResponse // what the running daemon tells about itself; nothing without one
}

func (m machine) user() diagnosis {
	if os.Geteuid() != 0 {
		return diagnosis{"user", broken, "this is not root, so some of what follows may be wrong", "run it as root"}
	}
	return diagnosis{"user", fine, "root", ""}
}

// The oldest kernel, and the one from which on nothing is missed.
var oldestKernel, fullKernel = [2]int{5, 10}, [2]int{5, 19}

func kernelDiagnosis(release string) diagnosis {
	var v [2]int
	if _, err := fmt.Sscanf(release, "%d.%d", &v[0], &v[1]); err != nil {
		return diagnosis{"kernel", warning, "no version can be read from " + release, ""}
	}
	switch {
	case slices.Compare(v[:], oldestKernel[:]) < 0:
		return diagnosis{"kernel", broken, release + " is too old", "5.10 is the minimum; install a newer one"}
	case slices.Compare(v[:], fullKernel[:]) < 0:
		return diagnosis{"kernel", warning, release + " has no id-mapped overlays, so pods with a user namespace cannot run",
			"5.19 has them"}
	}
	return diagnosis{"kernel", fine, release, ""}
}

// userNamespaces tells whether they can be made here. Whether a runtime can join one, only a daemon finds out.
func userNamespaces() diagnosis {
	_, err := os.Stat("/proc/self/ns/user")
	limit, _ := os.ReadFile("/proc/sys/user/max_user_namespaces")
	return usernsDiagnosis(err == nil, strings.TrimSpace(string(limit)))
}

func usernsDiagnosis(known bool, limit string) diagnosis {
	const subject, lack = "user namespaces", ", so pods with one of their own (hostUsers: false) cannot run"
	switch {
	case !known:
		return diagnosis{subject, warning, "the kernel has none" + lack, "install a kernel with CONFIG_USER_NS"}
	case limit == "0":
		return diagnosis{subject, warning, "the node allows none" + lack, "raise the sysctl user.max_user_namespaces"}
	case limit == "":
		return diagnosis{subject, fine, "the kernel has them", ""}
	}
	return diagnosis{subject, fine, "the node allows " + limit, ""}
}

func (m machine) overlay() diagnosis {
	if !m.facts.Overlay {
		return diagnosis{"overlay", broken, "the kernel has no overlay file system", "install a kernel with " +
			"CONFIG_OVERLAY_FS, or its module"}
	}
	return diagnosis{"overlay", fine, "the kernel has it", ""}
}

func (m machine) seccomp() diagnosis {
	if !m.facts.Seccomp {
		return diagnosis{"seccomp", warning, "the kernel does not filter system calls", "install a kernel with " +
			"CONFIG_SECCOMP_FILTER; without it pods run unconfined"}
	}
	return diagnosis{"seccomp", fine, "the kernel has it", ""}
}

// module is what a running daemon does with a security module that the machine has on.
func module(subject string, m *admin.Module) diagnosis {
	switch {
	case m.Problem != "":
		return diagnosis{subject, warning, m.Problem, "mend what it names; the daemon looks again at each pod and container"}
	case !m.On:
		return diagnosis{subject, fine, "the running daemon leaves it off, and pods run without", ""}
	}
	return diagnosis{subject, fine, "the running daemon gives containers " + m.Gives, ""}
}

// apparmor tells which profile containers get: of the running daemon, else of one that would start.
func (m machine) apparmor() diagnosis {
	const subject = "apparmor"
	if !m.facts.AppArmor {
		return diagnosis{subject, fine, "this kernel does not enforce it, and pods run without", ""}
	}
	if m.config.AppArmor == config.AppArmorOff {
		return diagnosis{subject, fine, "pods that name no profile run without one, because the configuration says so", ""}
	}
	if m.daemon.AppArmor != nil {
		return module(subject, m.daemon.AppArmor)
	}
	if slices.Contains(m.facts.AppArmorProfiles, apparmor.DefaultName) {
		return diagnosis{subject, fine, "the profile " + apparmor.DefaultName + " is loaded", ""}
	}
	if _, err := apparmor.FindParser(); err != nil {
		return diagnosis{subject, warning, "the kernel enforces it, and " + apparmor.DefaultName + " cannot be loaded: " +
			err.Error(),
			"install it; without the profile containers run unconfined, and those that ask for RuntimeDefault are refused"}
	}
	return diagnosis{subject, fine, "a daemon that starts loads the profile " + apparmor.DefaultName, ""}
}

// selinux tells whether containers get labels: from the running daemon, else from one that would start. What a daemon
// refuses to start with is bad.
func (m machine) selinux() diagnosis {
	const subject = "selinux"
	must := m.config.SELinux == config.SELinuxOn
	switch {
	case m.config.SELinux == config.SELinuxOff && m.facts.SELinux:
		return diagnosis{subject, fine, "the kernel has it on, and pods run without labels, because the configuration " +
			"says so", ""}
	case !m.facts.SELinux && must:
		return diagnosis{
			subject, broken, `no daemon starts with selinux = "on": this kernel has SELinux not on, or no policy`,
			"boot with SELinux, or leave the key out"}
	case !m.facts.SELinux:
		return diagnosis{subject, fine, "this kernel has it not on, and pods run without", ""}
	}
	if d := m.daemon.SELinux; d != nil {
		found := module(subject, d)
		if found.Result == fine {
			found.Text = selinux.Mode() + ", " + found.Text
		}
		return found
	}
	node, err := selinux.Open()
	if err != nil && must {
		return diagnosis{subject, broken, `no daemon starts with selinux = "on": ` + err.Error(), "change the policy, or " +
			"leave the key out"}
	}
	if err != nil {
		return diagnosis{subject, warning, "containers run without labels: " + err.Error(), "change the policy"}
	}
	process, _ := node.Usual()
	return diagnosis{subject, fine, selinux.Mode() + ", containers are " + process, ""}
}

const toUnified = "boot with systemd.unified_cgroup_hierarchy=1"

func (m machine) cgroups() diagnosis {
	mode := string(m.facts.Cgroup)
	var missing []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(m.facts.Controllers, c) {
			missing = append(missing, c)
		}
	}
	switch {
	case len(missing) > 0:
		return diagnosis{"cgroups", broken, mode + ": without the controllers " + strings.Join(missing, ", "),
			"mount cgroups at /sys/fs/cgroup with them, or " + toUnified}
	case m.facts.Cgroup != host.CgroupV2:
		return diagnosis{"cgroups", warning, mode + ": it works, but Kubernetes is leaving v1 behind", toUnified}
	}
	return diagnosis{"cgroups", fine, mode + ", driver " + m.facts.CgroupDriver, ""}
}

// cgroupMoves tells whether starts and execs wait until the kernel moves a process to another cgroup.
func cgroupMoves(cfg *config.Config) diagnosis {
	const subject, wait = "cgroup moves", "starts and execs wait for the kernel, some 8 ms each"
	mount := cgroup.Unified()
	if mount == "" {
		return diagnosis{subject, fine, wait + "; what helps takes cgroup v2", ""}
	}
	favored, err := cgroup.FavorsDynmods(mount)
	switch {
	case favored:
		return diagnosis{subject, fine, "starts and execs do not wait for them: the hierarchy has favordynmods", ""}
	case err == nil && cfg.CgroupFavorDynmods:
		return diagnosis{subject, warning, wait + ", although cgroup_favor_dynmods says that they should not",
			"restart the daemon; its log says what keeps it from that"}
	case err != nil:
		return diagnosis{subject, warning, "whether starts and execs wait for them is not to be had: " + err.Error(), ""}
	}
	return diagnosis{subject, fine, wait + "; cgroup_favor_dynmods = true takes that away", ""}
}

// runtimes tries the runtimes that are configured, and crun and runc.
func (m machine) runtimes(ctx context.Context) []diagnosis {
	configured := map[string]host.Runtime{}
	for name, h := range m.config.Runtimes.Handlers {
		configured[name] = host.Runtime{Path: h.Path, Args: h.Args}
	}
	all := host.FindRuntimes(configured)
	if len(all) == 0 {
		return []diagnosis{{"runtimes", broken, "there is neither crun nor runc", `install one: "apt-get install runc"`}}
	}
	dir, err := os.MkdirTemp("", "berth-doctor-")
	if err != nil {
		return []diagnosis{{"runtimes", warning, "they cannot be tried: " + err.Error(), ""}}
	}
	works := false
	for i, r := range all {
		tried := host.TryRuntime(ctx, r, dir, m.facts.CgroupDriver, runProgram)
		all[i], works = tried, works || tried.Works
	}
	found := make([]diagnosis, len(all))
	for i, r := range all {
		_, named := configured[r.Name]
		found[i] = m.runtime(r, works && !named && m.config.Runtimes.Default != r.Name)
	}
	for _, r := range all {
		if d, open := holes(host.Identify(r)); open {
			found = append(found, d)
		}
	}
	found = append(found, m.fallback(all)...)
	found = append(found, baseSpecs(m.config.Runtimes)...)
	return append(found, endTrials(dir)...)
}

// baseSpecs tells of base specs that cannot be used, and of those that keep usual capabilities from containers.
func baseSpecs(r config.Runtimes) (found []diagnosis) {
	for _, name := range slices.Sorted(maps.Keys(r.Handlers)) {
		path := r.Handlers[name].BaseSpec
		if path == "" {
			continue
		}
		var base *spec.Base
		text, err := limit.ReadFile(path, limit.BaseSpec)
		if err == nil {
			base, err = spec.ParseBase(text)
		}
		if withheld := base.Withheld(); len(withheld) > 0 {
			found = append(found, diagnosis{"runtime " + name, fine, fmt.Sprintf("its base spec %s keeps usual capabilities "+
				"from containers that name none: %s", path, strings.Join(withheld, " ")), ""})
		}
		if err != nil {
			found = append(found, diagnosis{"runtime " + name, broken, fmt.Sprintf("its base spec %s cannot be used, so no "+
				"pods are made with it: %v", path, err), "mend the file or base_spec under [runtimes." + name + "], then run " +
				"berth reload"})
		}
	}
	return found
}

// holes tells of the published ways out of a runtime's containers that are open on this machine.
func holes(r host.Runtime) (d diagnosis, open bool) {
	var ids, sources []string
	for _, a := range r.Holes() {
		ids = append(ids, a.ID+" of "+a.Date)
		if !slices.Contains(sources, a.Source) {
			sources = append(sources, a.Source)
		}
	}
	if len(ids) == 0 || !r.Works {
		return diagnosis{}, false
	}
	return diagnosis{"runtime " + r.Name, warning, fmt.Sprintf("containers may get out of %s %s: %s", r.Path, r.Version,
		strings.Join(ids, ", ")), "install a version that has them closed: " + strings.Join(sources, ", ")}, true
}

// fallback tells of a default runtime that is not there at all.
func (m machine) fallback(all []host.Runtime) []diagnosis {
	name := m.config.Runtimes.Default
	if name == "" {
		return nil
	}
	if _, err := host.Named(all, name); err != nil {
		return []diagnosis{{"default runtime", broken, "no daemon starts with it: " + err.Error(),
			"install it, or set another default under [runtimes], or none: then the first that works is taken"}}
	}
	return nil
}

// endTrials removes the directory of the trials, and nothing in it: each trial has removed what was its own. What one
// could not undo may be a mount of something precious.
func endTrials(dir string) []diagnosis {
	err := os.Remove(dir)
	if err == nil || absent(err) {
		return nil
	}
	return []diagnosis{{"runtimes", warning, "a trial could not be undone: " + err.Error(),
		"unmount what is mounted below " + dir + " (findmnt lists it), then remove that directory"}}
}

// runtime tells of one that was tried. One that does not work is no loss when another one is taken instead.
func (m machine) runtime(r host.Runtime, dispensable bool) diagnosis {
	subject := "runtime " + r.Name
	if r.Works {
		return diagnosis{subject, fine, fmt.Sprintf("%s %s makes containers", r.Path, r.Version), ""}
	}
	if _, err := os.Stat(r.Path); absent(err) { // only a configured one was not searched for
		return diagnosis{subject, broken, "there is no " + r.Path, "install it, or correct path under [runtimes." + r.Name +
			"]"}
	}
	d := diagnosis{
		subject, broken,
		fmt.Sprintf("%s %s makes no container: %s", r.Path, r.Version, strings.Join(strings.Fields(r.Why), " ")),
		"mend what it names, or install another runtime"}
	if m.config.Runtimes.Default == r.Name {
		d.Remedy = "mend what it names, or set another default under [runtimes], or none: then the first that works is taken"
	}
	if dispensable {
		d.Result, d.Remedy = warning, "nothing has to be done: another runtime works"
	}
	if r.Name == "crun" && m.facts.Cgroup == host.CgroupHybrid {
		d.Remedy += "; crun does not know hybrid cgroups, and works after you " + toUnified
	}
	return d
}

// runProgram runs a program of a trial. What it printed belongs to its error.
func runProgram(ctx context.Context, _ string, cmd *exec.Cmd) error {
	// A bytes.Buffer would make Wait wait for whoever inherited the pipe; a file does not.
	said, err := os.CreateTemp("", "berth-doctor-")
	if err != nil {
		return err
	}
	defer func() {
		_ = said.Close()
		_ = os.Remove(said.Name())
	}()
	cmd.Stderr, cmd.WaitDelay = said, 10*time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		text := make([]byte, 512)
		n, _ := said.ReadAt(text, 0) // at most less than all of it
		return errors.Join(ctx.Err(), fmt.Errorf("%s: %w: %s", cmd.Path, err, strings.TrimSpace(string(text[:n]))))
	}
	return nil
}

func (m machine) monitor() diagnosis {
	path, err := m.config.MonitorPath()
	if err != nil {
		return diagnosis{"monitor", broken, err.Error(), "put berth-monitor beside berth"}
	}
	return diagnosis{"monitor", fine, path, ""}
}

func (m machine) unpacker() diagnosis {
	if m.config.Images.Unpack == config.UnpackInDaemon {
		return diagnosis{"unpacker", fine, "none: images.unpack has the daemon unpack", ""}
	}
	path, err := m.config.UnpackerPath()
	if err != nil {
		return diagnosis{"unpacker", broken, err.Error(), "put berth-unpack beside berth"}
	}
	return diagnosis{"unpacker", fine, path, ""}
}

// What a file system should have left.
const (
	littleSpace  = 1 << 30
	noSpace      = 64 << 20
	littleInodes = 10000
)

// onlyImages is what a disk is for that need not carry an upper directory.
const onlyImages = "images"

func (m machine) disks() []diagnosis {
	c := m.config
	if c.Images.Root == "" {
		return []diagnosis{m.disk("images and pods", c.Root), m.disk("state", c.State)}
	}
	return []diagnosis{m.disk("pods", c.Root), m.disk(onlyImages, c.Images.Root), m.disk("state", c.State)}
}

func (m machine) disk(what, dir string) diagnosis {
	subject, at := "disk", present(dir)
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
	case s.Type == unix.OVERLAYFS_SUPER_MAGIC && what != "state" && what != onlyImages:
		return diagnosis{subject, broken, text + ", but it is itself an overlay, which cannot carry another's upper " +
			"directory",
			"put root on a real file system: root in the configuration, or a volume"}
	}
	return diagnosis{subject, fine, text, ""}
}

// present is the path, or what there is of the way to it: the daemon will make what is missing.
func present(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

// layers tells whether the image store's file system can hold them.
func (m machine) layers() diagnosis {
	const subject = "image layers"
	dir := present(m.config.ImagesRoot())
	err := rootfs.TryLayers(dir)
	var unfit *rootfs.UnfitError
	switch {
	case errors.As(err, &unfit):
		return diagnosis{subject, broken, err.Error(), "set images.root to a directory on another file system, such as " +
			"ext4, xfs, btrfs or tmpfs"}
	case err != nil:
		return diagnosis{subject, warning, "it cannot be tried now whether the image store can hold them: " + err.Error(),
			"mend what it names, and look again"}
	}
	return diagnosis{subject, fine, "the file system of " + dir + " can hold them", ""}
}

// verifiers tells whom a daemon would ask about images; nothing where none is configured.
func (m machine) verifiers() []diagnosis {
	const subject = "image verifiers"
	v := m.config.Verifier
	if v.Dir == "" {
		return nil
	}
	programs, err := (&verifier.Dir{Path: v.Dir, Max: v.Max}).Programs()
	switch {
	case err != nil:
		return []diagnosis{{subject, broken, "every image is refused: " + err.Error(), "mend what it names; it counts from " +
			"the next pull on"}}
	case len(programs) == 0:
		return []diagnosis{
			{subject, warning, "every image is accepted: there is no program in " + v.Dir, "put verifiers there, or clear " +
				"image_verifier.dir"}}
	}
	return []diagnosis{{subject, fine, fmt.Sprintf("%d in %s", len(programs), v.Dir), ""}}
}
