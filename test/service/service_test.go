// Package service tests what only a node of one's own can show: the package as dpkg installs it, berth.service under
// systemd, and pods that live through the restarts, crashes, hangs and upgrades of their daemon.
//
// The tests change the machine they run on, so they run in a virtual one alone (make test-vm), in the order that
// test/cmd/suite has: a boot lies between TestShutdown and TestBooted.
package service

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/installed"
)

// The things under test, as the package names them.
const (
	unit  = installed.Unit
	image = "service.test/web:v1"
)

func TestMain(m *testing.M) { os.Exit(installed.Main(m)) }

// property is one of the service's.
func property(t *testing.T, name string) string {
	t.Helper()
	return installed.Run(t, "systemctl", "show", "-P", name, unit)
}

func mainPid(t *testing.T) int {
	t.Helper()
	pid, err := strconv.Atoi(property(t, "MainPID"))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// serving waits until another process than the old serves.
func serving(t *testing.T, old int) int {
	t.Helper()
	pid := 0
	installed.Eventually(t, fmt.Sprintf("another daemon than %d serves", old), func() bool {
		if property(t, "ActiveState") != "active" {
			return false
		}
		pid = mainPid(t)
		return pid != 0 && pid != old
	})
	if out, err := installed.Try("berth", "ps"); err != nil {
		t.Fatalf("the service is up, and its daemon does not answer: %v %s\n%s", err, out, installed.Journal())
	}
	return pid
}

// web is a container that writes a line to its log each second.
type web struct{ name, pids string }

func runWeb(t *testing.T, name string) web {
	t.Helper()
	w := web{name: name}
	installed.Run(t, "berth", "run", "-d", "--name", name, image, "sh", "-c", "n=0; while :; do n=$((n+1)); echo line "+
		"$n; sleep 1; done")
	w.pids = w.processes(t)
	return w
}

// processes says which process and namespaces the container is: when it started, and the namespaces' numbers.
func (w web) processes(t *testing.T) string {
	t.Helper()
	return installed.Run(t, "berth", "exec", w.name, "--", "sh", "-c", "cut -d' ' -f1,22 /proc/1/stat; readlink "+
		"/proc/1/ns/net; readlink /proc/1/ns/mnt")
}

func (w web) lines(t *testing.T) int {
	t.Helper()
	return len(strings.Fields(installed.Run(t, "berth", "logs", w.name))) / 2
}

// goesOn wants the same processes to run, an exec to work, and the log to have every line and to grow.
func (w web) goesOn(t *testing.T) {
	t.Helper()
	if got := w.processes(t); got != w.pids {
		t.Errorf("%s is not what it was: %s, was %s", w.name, got, w.pids)
	}
	before := w.lines(t)
	installed.Eventually(t, "the log of "+w.name+" grows", func() bool { return w.lines(t) > before })
	for i, line := range strings.Split(installed.Run(t, "berth", "logs", w.name), "\n") {
		if want := fmt.Sprintf("line %d", i+1); line != want {
			t.Fatalf("line %d of the log of %s is %q", i+1, w.name, line)
		}
	}
}

// TestInstall installs the package. The tests after it use the service that it made.
func TestInstall(t *testing.T) {
	out := installed.Run(t, "dpkg", "-i", installed.Deb(t))
	serving(t, 0)
	for name, want := range map[string]string{
		"Type": "notify", "NotifyAccess": "main", "KillMode": "process", "Delegate": "yes",
		"DelegateSubgroup": "daemon", "OOMPolicy": "continue", "OOMScoreAdjust": "-999", "Restart": "always",
		"TasksMax":      "infinity",
		"UnitFileState": "enabled", "StatusText": "Serving CRI at /run/berth/berth.sock", "LimitNOFILESoft": "1024",
	} {
		if got := property(t, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if info, err := os.Stat("/run/nri/nri.sock"); err != nil || info.Mode().Type() != os.ModeSocket {
		t.Errorf("NRI is on where nothing is configured: %v, %v", info, err)
	}
	if before := " " + property(t, "Before") + " "; !strings.Contains(before, " kubelet.service ") {
		t.Errorf("it is started before%s", before)
	}
	if bad, err := installed.Try("systemd-analyze", "--man=no", "verify", "/usr/lib/systemd/system/"+unit); err != nil ||
		strings.Contains(bad, unit) {
		t.Errorf("systemd finds in the unit: %v %s", err, bad)
	}
	if score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", mainPid(t))); err != nil ||
		strings.TrimSpace(string(score)) != "-999" {
		t.Errorf("the daemon's oom_score_adj: %s %v", score, err)
	}
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", mainPid(t))); err != nil ||
		!strings.Contains(string(env), "NOTIFY_SOCKET=") {
		t.Errorf("the daemon was not told whom to notify: %v", err)
	}
	for _, path := range []string{"/usr/share/man/man1/berth-serve.1.gz", "/usr/share/bash-completion/completions/berth",
		"/etc/berth/config.toml"} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%v; dpkg said: %s", err, out)
		}
	}
	profiles, err := os.ReadFile("/sys/kernel/security/apparmor/profiles")
	if err != nil || !strings.Contains(string(profiles), "berth-default (enforce)") {
		t.Errorf("the daemon did not load its AppArmor profile: %v\n%s", err, installed.Journal())
	}
	handlersWork(t)
}

// handlersWork wants both runtimes, which nobody has configured, to be told with all that they can: they are tried in
// /run/berth, and Debian mounts /run noexec.
func handlersWork(t *testing.T) {
	t.Helper()
	type handler struct {
		Name     string
		Features struct{ UserNamespaces, RecursiveReadOnlyMounts bool }
	}
	installed.Eventually(t, "both runtimes have user namespaces", func() bool {
		var info struct{ RuntimeHandlers []handler }
		if err := json.Unmarshal([]byte(installed.Run(t, "berth", "info", "-o", "json")), &info); err != nil {
			t.Fatal(err)
		}
		able := map[string]bool{}
		for _, h := range info.RuntimeHandlers {
			able[h.Name] = h.Features.UserNamespaces && h.Features.RecursiveReadOnlyMounts
		}
		return able[""] && able["crun"] && able["runc"]
	})
}

// TestHelpersOutliveTheDaemon has a daemon be killed, and one be stopped, while a CNI plugin runs and while a process
// is in the daemon's own group, as a plugin of NRI may be. Systemd starts the next one in the unit's own cgroup, as all
// before systemd 254 do, which do not know DelegateSubgroup=.
func TestHelpersOutliveTheDaemon(t *testing.T) {
	installed.Network(t)
	installed.Image(t, image)
	beside := runWeb(t, "beside")
	dropIn := "/run/systemd/system/" + unit + ".d"
	made := map[string]string{
		slowPlugin: slowScript, "/etc/cni/net.d/00-slow.conflist": slowNetwork,
		dropIn + "/50-test.conf": "[Service]\nDelegateSubgroup=\n",
	}
	for path, text := range made {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	again := func(pid int) int {
		installed.Run(t, "systemctl", "daemon-reload")
		installed.Run(t, "systemctl", "restart", unit)
		return serving(t, pid)
	}
	pid := again(mainPid(t))
	if got := property(t, "DelegateSubgroup"); got != "" {
		t.Fatalf("systemd starts the daemon in the group %q of the unit", got)
	}
	if !t.Run("killed", func(t *testing.T) { pid = endWithHelpers(t, pid, "kill", "-9", strconv.Itoa(pid)) }) {
		return // nothing serves
	}
	t.Run("stopped", func(t *testing.T) { pid = endWithHelpers(t, pid, "systemctl", "restart", unit) })
	for path := range made {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
	_ = os.Remove(dropIn)
	again(pid)
	beside.goesOn(t)
	installed.Run(t, "berth", "rm", "-f", "beside")
}

// TestPodsOutliveTheDaemon is one pod through all that may happen to its daemon.
func TestPodsOutliveTheDaemon(t *testing.T) {
	installed.Network(t)
	installed.Image(t, image)
	w := runWeb(t, "web")
	pid := serving(t, 0)
	step := func(name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			f(t)
			w.goesOn(t)
		})
	}
	step("restart", func(t *testing.T) {
		installed.Run(t, "systemctl", "restart", unit)
		pid = serving(t, pid)
	})
	step("stop and start", func(t *testing.T) {
		lines := w.lines(t)
		installed.Run(t, "systemctl", "stop", unit)
		if got := property(t, "Result"); got != "success" {
			t.Errorf("it stopped with %s\n%s", got, installed.Journal())
		}
		if _, err := os.Stat("/run/berth/berth.sock"); !os.IsNotExist(err) {
			t.Errorf("the socket after the stop: %v", err)
		}
		time.Sleep(3 * time.Second) // in which the pod writes
		installed.Run(t, "systemctl", "start", unit)
		pid = serving(t, pid)
		if got := w.lines(t); got <= lines {
			t.Errorf("the log had %d lines before the stop, and %d after", lines, got)
		}
	})
	step("kill -9", func(t *testing.T) {
		installed.Run(t, "kill", "-9", strconv.Itoa(pid))
		pid = serving(t, pid)
	})
	step("a daemon that hangs", func(t *testing.T) { pid = hang(t, pid) })
	step("reload", func(t *testing.T) { reload(t, pid) })
	step("the limit of its memory", func(t *testing.T) { pid = dieOfMemory(t, pid) })
	step("upgrade", func(t *testing.T) { pid = upgrade(t, pid) })
	step("the profile is unloaded", func(t *testing.T) {
		// Who unloads it frees what ran under it; what starts from then on is confined again.
		if out, err := installed.Try("sh", "-c", "echo 'profile berth-default { }' | apparmor_parser --remove"); err != nil {
			t.Fatalf("unload the profile: %v %s", err, out)
		}
		got := installed.Run(t, "berth", "run", "--rm", "--name", "confined", image, "cat", "/proc/self/attr/current")
		if got != "berth-default (enforce)" {
			t.Errorf("the next container runs under %q", got)
		}
	})
	installed.Run(t, "berth", "rm", "-f", "web")
}

// hang stops the daemon's process, and wants the watchdog to end it.
func hang(t *testing.T, pid int) int {
	t.Helper()
	dir := "/run/systemd/system/berth.service.d"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// Long enough for an emulated processor, and for a stopped process that no SIGABRT ends.
	if err := os.WriteFile(dir+"/50-test.conf", []byte("[Service]\nWatchdogSec=30\nTimeoutStopSec=5\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	installed.Run(t, "systemctl", "daemon-reload")
	installed.Run(t, "systemctl", "restart", unit)
	pid = serving(t, pid)
	time.Sleep(45 * time.Second) // a daemon that answers itself is left alone
	if got := mainPid(t); got != pid {
		t.Fatalf("a healthy daemon was replaced\n%s", installed.Journal())
	}
	installed.Run(t, "kill", "-STOP", strconv.Itoa(pid))
	pid = serving(t, pid)
	installed.Eventually(t, "the journal says that the watchdog ended it", func() bool {
		text, _ := installed.Try("journalctl", "-b", "-u", unit, "--no-pager", "-o", "cat")
		return strings.Contains(text, "Watchdog timeout")
	})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	installed.Run(t, "systemctl", "daemon-reload")
	return pid
}

// reload has systemd tell the daemon of a new file, and of a bad one, which changes nothing.
func reload(t *testing.T, pid int) {
	t.Helper()
	const file = "/etc/berth/conf.d/50-reload.toml"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pinned := func() string { return installed.Run(t, "sh", "-c", "berth config | grep -A3 pinned") }
	write("[images]\npinned = [\"registry.example/reloaded:*\"]\n")
	installed.Run(t, "systemctl", "reload", unit)
	if got := pinned(); !strings.Contains(got, "registry.example/reloaded") {
		t.Errorf("after the reload: %s\n%s", got, installed.Journal())
	}
	write("[images]\npinned = 7\n")
	if out, err := installed.Try("systemctl", "reload", unit); err == nil {
		t.Errorf("a bad file was taken over: %s", out)
	} else {
		installed.Eventually(t, "the journal names the bad file", func() bool {
			return strings.Contains(installed.Journal(), "50-reload.toml")
		})
	}
	if got := pinned(); !strings.Contains(got, "registry.example/reloaded") {
		t.Errorf("after a bad reload: %s", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	installed.Run(t, "systemctl", "reload", unit)
	if got := mainPid(t); got != pid {
		t.Errorf("a reload replaced the daemon: %d, then %d", pid, got)
	}
}

// upgrade installs a package of a later version, whose daemon is another file.
func upgrade(t *testing.T, pid int) int {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	installed.Run(t, "dpkg-deb", "-R", installed.Deb(t), root)
	installed.Run(t, "sed", "-i", "s/^Version: .*/Version: 999/", filepath.Join(root, "DEBIAN/control"))
	// What follows an ELF file changes nothing of what it does.
	for _, program := range []string{"berth", "berth-monitor", "berth-unpack"} {
		installed.Run(t, "sh", "-c", "echo later >>"+filepath.Join(root, "usr/bin", program))
	}
	later := filepath.Join(dir, "later.deb")
	installed.Run(t, "dpkg-deb", "-Znone", "--build", root, later)
	mine := []byte("log_level = \"debug\"\ncgroup_favor_dynmods = true\n")
	if err := os.WriteFile("/etc/berth/conf.d/50-mine.toml", mine, 0o644); err != nil {
		t.Fatal(err)
	}
	options := installed.Run(t, "findmnt", "-no", "FS-OPTIONS", "/sys/fs/cgroup")
	installed.Run(t, "sh", "-c", "echo '# mine' >>/etc/berth/config.toml")
	installed.Run(t, "dpkg", "--force-confold", "-i", later)
	pid = serving(t, pid)
	if same, err := installed.Try("cmp", fmt.Sprintf("/proc/%d/exe", pid),
		filepath.Join(root, "usr/bin/berth")); err != nil {
		t.Errorf("the daemon is not the later one: %v %s", err, same)
	}
	if text, err := os.ReadFile("/etc/berth/config.toml"); err != nil || !strings.HasSuffix(string(text), "# mine\n") {
		t.Errorf("the administrator's configuration is gone: %v", err)
	}
	now := installed.Run(t, "findmnt", "-no", "FS-OPTIONS", "/sys/fs/cgroup")
	for _, o := range append(strings.Split(options, ","), "favordynmods") {
		if !slices.Contains(strings.Split(now, ","), o) {
			t.Errorf("the cgroup2 hierarchy had %s, and has %s, with no %s", options, now, o)
		}
	}
	// A pod of the new daemon has a monitor of the new release.
	installed.Run(t, "berth", "run", "--rm", "--name", "later", image, "true")
	return pid
}

// TestRemove removes the package under a pod, brings it back, and purges it when the pod is gone.
func TestRemove(t *testing.T) {
	w := runWeb(t, "left")
	said := installed.Run(t, "dpkg", "--remove", "berth")
	if !strings.Contains(said, "run on without the daemon") {
		t.Errorf("the removal did not say that a pod runs: %s", said)
	}
	if state := installed.Run(t, "sh", "-c", "systemctl is-active berth || true"); state == "active" {
		t.Errorf("the service is %s without its package", state)
	}
	installed.Run(t, "dpkg", "-i", installed.Deb(t))
	serving(t, 0)
	w.goesOn(t)
	installed.Run(t, "dpkg", "--remove", "berth")
	if said := installed.Run(t, "dpkg", "--purge", "berth"); !strings.Contains(said, "are kept") {
		t.Errorf("purging under a pod said: %s", said)
	}
	if _, err := os.Stat("/var/lib/berth/pods"); err != nil {
		t.Errorf("the records of a pod that runs: %v", err)
	}
	installed.Run(t, "dpkg", "-i", installed.Deb(t))
	serving(t, 0)
	w.goesOn(t)
	installed.Run(t, "berth", "rm", "-f", "left")
	installed.Run(t, "dpkg", "--purge", "berth")
	for _, path := range []string{"/var/lib/berth", "/run/berth", "/usr/bin/berth",
		"/usr/lib/systemd/system/berth.service", "/etc/berth/config.toml"} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("after the purge there is %s: %v", path, err)
		}
	}
	installed.Eventually(t, "nothing of Berth runs after the purge", func() bool {
		out, _ := installed.Try("pgrep", "-l", "berth")
		return out == ""
	})
}
