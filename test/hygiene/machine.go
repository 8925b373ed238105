package hygiene

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"

	"berth/test/isolate"
)

// Machine looks at the machine as this process sees it.
func Machine() (Snapshot, error) {
	s := Snapshot{}
	parts := []func(Snapshot) error{processes, mounts, links, rules, cgroups, files, loops}
	for _, part := range parts {
		if err := part(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Inside looks at what a space has of its own: mounts, links, and the filter rules that belong to single pods. What CNI
// plugins set up once for all pods and never remove (the bridge, the top chains of portmap) is not listed.
func Inside(sp *isolate.Space) (Snapshot, error) {
	s := Snapshot{}
	err := sp.Do(func() error {
		return errors.Join(mounts(s), links(s))
	})
	if err != nil {
		return nil, err
	}
	for name, link := range s[Link] {
		if strings.HasPrefix(link, "bridge") {
			delete(s[Link], name)
		}
	}
	err = eachRule(sp.Run, func(line string) {
		if perPod.MatchString(line) {
			s.add(Rule, line, "")
		}
	})
	return s, err
}

// perPod matches the chains that the bridge and portmap plugins make for one pod: their names end in a hash.
var perPod = regexp.MustCompile(`CNI-(DN-|SN-)?[0-9a-f]{10,}`)

func processes(s Snapshot) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if p, ok := readProcess(pid); ok && !strings.HasSuffix(p.detail, busGroup) && ofTests(pid, p) {
			s.add(Process, p.name, p.detail)
		}
	}
	return nil
}

// busGroup ends the description of the D-Bus daemon, which a test restarts.
const busGroup = " in cgroup /system.slice/dbus.service"

type process struct{ name, detail string }

// readProcess describes a process by what it runs and where. It is not ok for one that has ended or is a kernel thread.
func readProcess(pid int) (p process, ok bool) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return p, false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest) // state is field 3 of stat(5), the parent 4, the start time 22
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" || fields[1] == "2" || pid == 2 {
		return p, false
	}
	cmdline, _ := os.ReadFile(dir + "cmdline")
	groups, _ := os.ReadFile(dir + "cgroup")
	p.name = fmt.Sprintf("%d started at %s", pid, fields[19])
	p.detail = strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " ")) + " in cgroup " +
		deepest(string(groups))
	return p, true
}

// deepest returns the longest path of a /proc/<pid>/cgroup file, which says most about what the process belongs to.
func deepest(groups string) string {
	longest := "/"
	for _, line := range strings.Split(groups, "\n") {
		if parts := strings.SplitN(line, ":", 3); len(parts) == 3 && len(parts[2]) > len(longest) {
			longest = parts[2]
		}
	}
	return longest
}

type mountLine struct{ point, fsType, source, options string } // options are those of the file system

func readMounts() ([]mountLine, error) {
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var list []mountLine
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		head, tail, _ := strings.Cut(line, " - ")
		h, f := strings.Fields(head), strings.Fields(tail)
		if len(h) >= 5 && len(f) >= 3 {
			list = append(list, mountLine{h[4], f[0], f[1], f[2]})
		}
	}
	return list, nil
}

func mounts(s Snapshot) error {
	list, err := readMounts()
	seen := map[string]int{}
	for _, m := range list {
		if strings.HasPrefix(m.point, "/run/credentials/") {
			continue // systemd mounts one for a service, when it pleases
		}
		name := m.point
		if seen[m.point]++; seen[m.point] > 1 {
			name = fmt.Sprintf("%s #%d", m.point, seen[m.point])
		}
		s.add(Mount, name, m.fsType+" of "+m.source)
	}
	return err
}

func links(s Snapshot) error {
	list, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list network links: %w", err)
	}
	for _, l := range list {
		s.add(Link, l.Attrs().Name, l.Type())
	}
	return nil
}

func rules(s Snapshot) error {
	return eachRule((*exec.Cmd).Run, func(line string) { s.add(Rule, line, "") })
}

// eachRule calls f with every rule and chain of the packet filter, as iptables-save prints them, without counters.
func eachRule(run func(*exec.Cmd) error, f func(line string)) error {
	for _, save := range []string{"iptables-save", "ip6tables-save"} {
		if _, err := exec.LookPath(save); err != nil {
			continue
		}
		var out, errs strings.Builder
		cmd := exec.Command(save)
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := run(cmd); err != nil {
			return fmt.Errorf("list filter rules: %s: %w: %s", save, err, strings.TrimSpace(errs.String()))
		}
		table := ""
		for _, line := range strings.Split(out.String(), "\n") {
			if name, ok := strings.CutPrefix(line, "*"); ok {
				table = name
			}
			if strings.HasPrefix(line, ":") || strings.HasPrefix(line, "-A") {
				line, _, _ = strings.Cut(line, " [")
				f(strings.TrimSuffix(save, "-save") + " " + table + " " + line)
			}
		}
	}
	return nil
}

func cgroups(s Snapshot) error {
	list, err := readMounts()
	if err != nil {
		return err
	}
	for _, m := range list {
		if m.fsType == "cgroup" || m.fsType == "cgroup2" {
			addDirs(s, m.point)
		}
		for _, o := range strings.Split(m.options, ",") {
			// A new mount that does not name them takes them from the whole machine.
			if m.fsType == "cgroup2" && (o == "nsdelegate" || o == "memory_recursiveprot") {
				s.add(Cgroup, m.point+" with "+o, "")
			}
		}
	}
	return nil
}

// parentSlice holds the slices of all of Berth's instances. systemd keeps it when it is empty.
const parentSlice = "/sys/fs/cgroup/berth.slice"

func addDirs(s Snapshot, root string) {
	// Groups come and go while one walks; what has gone is not there, which is no error.
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != root && path != parentSlice && named.MatchString(path) {
			s.add(Cgroup, path, "")
		}
		return nil
	})
}

// loops finds the loop devices that have a file. Whose they are shows in the file's path.
func loops(s Snapshot) error {
	const file = "/loop/backing_file"
	found, err := filepath.Glob("/sys/block/loop*" + file)
	for _, path := range found {
		if backing, err := os.ReadFile(path); err == nil {
			s.add(Loop, "/dev/"+filepath.Base(strings.TrimSuffix(path, file)), strings.TrimSpace(string(backing)))
		}
	}
	return err
}

// watched are the folders where a container runtime leaves files, and how deep to look. Deeper, other programs' own
// data begins.
var watched = []struct {
	root   string
	depth  int
	prefix string // of the names directly below root
}{
	{"/run", 3, ""}, {"/var/lib", 2, ""}, {"/var/lib/cni", 4, ""}, {"/etc/cni", 3, ""}, {"/etc/berth", 3, ""},
	{"/var/log", 1, "pods"}, {"/tmp", 1, "bt-"}, {"/dev/shm", 1, ""}, {"/dev/mqueue", 1, ""},
}

// ignored are files that belong to nobody: iptables' lock, the folder in which every network tool pins its namespaces
// (it is looked into all the same), what apt rewrites, the folders that crun makes before it so much as says its
// version and mount(8) at its first call, and what systemd makes when it pleases.
var ignored = map[string]bool{"/run/xtables.lock": true, "/run/netns": true, "/var/lib/apt/lists": true,
	"/run/crun": true, "/run/agetty.reload": true, "/run/mount": true}

// systemds are the folders of systemd's own, in which it does as it pleases.
var systemds = map[string]bool{"/run/systemd": true, "/run/credentials": true, "/run/udev": true}

func files(s Snapshot) error {
	for _, w := range watched {
		addFiles(s, w.root, w.depth, w.prefix)
	}
	for name := range s[File] {
		if rest, ok := strings.CutPrefix(name, "/run/netns/"); ok {
			s.add(NetNS, rest, "pinned at "+name)
			delete(s[File], name)
		}
	}
	return nil
}

func addFiles(s Snapshot, root string, depth int, prefix string) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return // not there, so nothing is left in it
	}
	for _, e := range entries {
		path := filepath.Join(root, e.Name())
		if !strings.HasPrefix(e.Name(), prefix) || !ofRoot(e) && !named.MatchString(path) {
			continue
		}
		if !ignored[path] {
			s.add(File, path, e.Type().String())
		}
		if e.IsDir() && depth > 1 && !systemds[path] {
			addFiles(s, path, depth-1, "")
		}
	}
}

// ofRoot says whether a file is root's, as all are that tests, runtimes and plugins make. Sessions of other users have
// files in the same folders.
func ofRoot(e fs.DirEntry) bool {
	info, err := e.Info()
	if err != nil {
		return false // it has gone meanwhile
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0
}
