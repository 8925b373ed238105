package chaos

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/test/isolate"
	"berth/test/timeouts"
)

// sight is what is there at a moment: names of things.
type sight map[string]bool

// look lists all that pods have on the machine. The namespaces are the run's own, so that nobody else's things are
// seen.
func look(s *stage) (sight, error) {
	seen := sight{}
	for _, part := range []func(*stage, sight) error{lookForMounts, lookForLinks, lookForRules} {
		if err := part(s, seen); err != nil {
			return nil, err
		}
	}
	lookForProcesses(s, seen)
	lookForFiles(s, seen)
	lookForCgroups(s, seen)
	return seen, nil
}

// leftBehind counts what is there and was not before the first pod. What is just ending has a while to go.
func (s *stage) leftBehind(before sight) {
	began := time.Now()
	for {
		waited := time.Since(began)
		late := waited > timeouts.For(time.Minute)
		now, err := look(s)
		if err == nil {
			maps.DeleteFunc(now, func(name string, _ bool) bool { return before[name] })
		}
		switch {
		case err == nil && len(now) == 0:
			return
		case late && err != nil:
			s.report.lose(Left, "nobody knows: %v", err)
			return
		case late:
			s.tellLeft(now)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (s *stage) tellLeft(left sight) {
	for _, name := range slices.Sorted(maps.Keys(left)) {
		s.report.lose(Left, "left behind: %s", name)
	}
}

// lookForProcesses lists all but those of the run itself, the daemon and the registry, and unpackers, which stay for
// a while where there may be more to unpack.
func lookForProcesses(s *stage, seen sight) {
	for _, p := range processes() {
		mine := p.pid == 1 || p.pid == os.Getpid() || p.pid == s.daemon.pid() || p.pid == s.registry.pid()
		if c := s.classOf(p); !mine && c != unpacker && (!s.Machine || c != other || p.program() == "webapp") {
			seen[fmt.Sprintf("process %d: %.200q", p.pid, p.argv)] = true
		}
	}
}

func lookForMounts(_ *stage, seen sight) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			seen["mount "+fields[4]] = true
		}
	}
	return err
}

func lookForLinks(_ *stage, seen sight) error {
	list, err := netlink.LinkList()
	for _, l := range list {
		if l.Type() != "bridge" {
			seen["link "+l.Attrs().Name] = true
		}
	}
	return err
}

// ofPod matches the chains that the bridge and portmap plugins make for one pod, and those that CRI-O makes for host
// ports, which it does not leave to portmap: their names end in a hash. All that is left of the rules of a pod is one
// thing.
var ofPod = regexp.MustCompile(`CNI-(DN-|SN-)?[0-9a-f]{10,}|(KUBE-HP|CRIO-MASQ)-[A-Z2-7]{10,}`)

func lookForRules(_ *stage, seen sight) error {
	for _, save := range []string{"iptables-save", "ip6tables-save"} {
		out, err := exec.Command(save).Output()
		if err != nil {
			return fmt.Errorf("%s: %w", save, err)
		}
		for line := range strings.Lines(string(out)) {
			if chain := ofPod.FindString(line); chain != "" {
				seen["rules of "+save+", chain "+chain] = true
			}
		}
	}
	return nil
}

// lookForFiles lists leases and pinned namespaces, what is in /tmp, and what bears the id of a pod or container where
// runtimes keep state.
func lookForFiles(s *stage, seen sight) {
	leases := s.leases()
	for _, pattern := range []string{leases + "/*/[0-9]*.*", leases + "/*/*:*", "/run/*ns/*", "/tmp/*", "/tmp/.*"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			seen["file "+path] = true
		}
	}
	for _, dir := range []string{"/run", "/var/lib", s.root} {
		// Files come and go while one walks; what has gone is not there, which is no error.
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			if found := id.FindString(d.Name()); found != "" && s.history.knows(found) {
				seen["file "+path] = true
				return fs.SkipDir
			}
			if d.IsDir() && (d.Name() == "rootfs" || d.Name() == "layers" || d.Name() == "snapshots") {
				return fs.SkipDir
			}
			return nil
		})
	}
}

// lookForCgroups lists those in which containers, their helpers and monitors are. That of a pod itself is its
// kubelet's.
func lookForCgroups(s *stage, seen sight) {
	for _, dir := range s.cgroups() {
		switch base := filepath.Base(dir); {
		case strings.HasPrefix(base, "pod"), strings.HasSuffix(base, ".slice"):
		case !strings.Contains(dir, s.parent) && !ofOperation(dir):
		case base == strings.TrimPrefix(s.parent, "/"), !isCgroup(dir):
		default:
			seen["cgroup "+ofHierarchy(dir)] = true
		}
	}
}

// ofHierarchy is the path of a cgroup in its hierarchy: one that is left in each of a dozen is one thing.
func ofHierarchy(dir string) string {
	name := strings.TrimPrefix(dir, cgroupRoot)
	if _, err := os.Stat(cgroupRoot + "/cgroup.procs"); err != nil { // cgroup v1: each controller has a hierarchy
		_, name, _ = strings.Cut(strings.TrimPrefix(name, "/"), "/")
	}
	return name
}

// ofOperation says of a cgroup of the runtime's own that it is one pod's, container's or helper's.
func ofOperation(dir string) bool {
	return id.MatchString(dir) || filepath.Base(filepath.Dir(dir)) == "ops"
}

// isCgroup says whether a directory is a cgroup. Where the cgroup2 hierarchy of a hybrid machine is out of sight,
// crun makes plain directories in its place.
func isCgroup(dir string) bool {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return err == nil && (st.Type == unix.CGROUP_SUPER_MAGIC || st.Type == unix.CGROUP2_SUPER_MAGIC)
}

// removePlain removes those directories, which the machine would keep.
func (s *stage) removePlain() {
	for _, dir := range s.cgroups() {
		if !isCgroup(dir) {
			_ = os.RemoveAll(dir)
		}
	}
}

const cgroupRoot = "/sys/fs/cgroup"

// cgroups lists all that are the run's, those below others first.
func (s *stage) cgroups() (all []string) {
	_ = filepath.WalkDir(cgroupRoot, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (strings.Contains(path, s.parent) || strings.Contains(path, s.own)) {
			all = append(all, path)
		}
		return nil
	})
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}

// Sweep cleans up after runs that were killed.
func Sweep() error { return isolate.Sweep(registryFile, CleanUp) }

// CleanUp removes the cgroups of a run in a folder. All its processes have ended, or are just about to.
func CleanUp(dir string) error {
	s := newStage(Options{Dir: dir})
	deadline := time.Now().Add(timeouts.For(30 * time.Second))
	for {
		var failed error
		for _, group := range s.cgroups() {
			if err := os.Remove(group); err != nil && !os.IsNotExist(err) {
				failed = fmt.Errorf("remove cgroup: %w", err)
			}
		}
		if failed == nil || time.Now().After(deadline) {
			return failed
		}
		time.Sleep(20 * time.Millisecond)
	}
}
