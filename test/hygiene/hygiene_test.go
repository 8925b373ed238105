package hygiene

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/test/isolate"
	"berth/test/timeouts"
)

// plant is something left behind on purpose: how to leave it, and the words by which it must be found.
type plant struct {
	kind Kind
	name string
	make func(t *testing.T, name string) (undo func())
}

func plants() []plant {
	return []plant{
		{Process, "60.0417", func(t *testing.T, name string) func() {
			cmd := exec.Command("sleep", name)
			must(t, cmd.Start())
			return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
		}},
		{Mount, "bt-planted-mount", func(t *testing.T, name string) func() {
			dir := filepath.Join(t.TempDir(), name)
			must(t, os.Mkdir(dir, 0o700))
			must(t, unix.Mount("none", dir, "tmpfs", 0, "size=4k"))
			return func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }
		}},
		{NetNS, "bt-planted-netns", func(t *testing.T, name string) func() {
			must(t, os.MkdirAll("/run/netns", 0o755))
			must(t, os.WriteFile("/run/netns/"+name, nil, 0o444))
			return func() { _ = os.Remove("/run/netns/" + name) }
		}},
		{Link, "btplanted0", func(t *testing.T, name string) func() {
			link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
			must(t, netlink.LinkAdd(link))
			return func() { _ = netlink.LinkDel(link) }
		}},
		{Cgroup, "bt-planted-group", func(t *testing.T, name string) func() {
			dir := cgroupRoot(t) + "/" + name
			must(t, os.Mkdir(dir, 0o755))
			return func() { _ = os.Remove(dir) }
		}},
		{File, "bt-planted-file", func(t *testing.T, name string) func() {
			must(t, os.WriteFile("/run/"+name, nil, 0o600))
			return func() { _ = os.Remove("/run/" + name) }
		}},
		{Loop, "bt-planted-loop", func(t *testing.T, name string) func() {
			if _, err := os.Stat("/dev/loop-control"); err != nil {
				t.Skip(err)
			}
			file := filepath.Join(t.TempDir(), name)
			must(t, os.WriteFile(file, make([]byte, 4096), 0o600))
			dev, err := exec.Command("losetup", "--find", "--show", file).Output()
			must(t, err)
			return func() { _ = exec.Command("losetup", "--detach", strings.TrimSpace(string(dev))).Run() }
		}},
	}
}

func cgroupRoot(t *testing.T) string {
	t.Helper()
	list, err := readMounts()
	must(t, err)
	for _, m := range list {
		if m.fsType == "cgroup2" {
			return m.point
		}
	}
	t.Skip("no cgroup2 hierarchy is mounted")
	return ""
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("planting a leak needs root")
	}
}

func TestPlantedLeakIsFound(t *testing.T) {
	needRoot(t)
	for _, p := range plants() {
		t.Run(string(p.kind), func(t *testing.T) {
			before, err := Machine()
			must(t, err)
			undo := sync.OnceFunc(p.make(t, p.name)) // the same number may be another's loop device by then
			defer undo()
			leaks, err := Check(before, Machine, Naming(p.name), 100*time.Millisecond)
			must(t, err)
			if len(leaks) == 0 || leaks[0].Kind != p.kind || leaks[0].Gone {
				t.Fatalf("planted a %s; found %v", p.kind, leaks)
			}
			undo()
			leaks, err = Check(before, Machine, Naming(p.name), timeouts.For(20*time.Second))
			must(t, err)
			if len(leaks) != 0 {
				t.Fatalf("the leak was removed and is still reported: %v", leaks)
			}
		})
	}
}

func TestWhatVanishedIsFound(t *testing.T) {
	needRoot(t)
	undo := plants()[5].make(t, "bt-planted-early")
	defer undo()
	before, err := Machine()
	must(t, err)
	undo()
	leaks, err := Check(before, Machine, Naming("bt-planted-early"), 0)
	must(t, err)
	if len(leaks) != 1 || !leaks[0].Gone || !strings.HasPrefix(leaks[0].String(), "gone: file /run/") {
		t.Errorf("removed a file; found %v", leaks)
	}
}

func TestInsideSeesPodRulesOnly(t *testing.T) {
	needRoot(t)
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Skip("iptables is not installed")
	}
	sp, err := isolate.NewSpace()
	must(t, err)
	defer func() { _ = sp.Close() }()
	before, err := Inside(sp)
	must(t, err)
	for _, chain := range []string{"CNI-HOSTPORT-DNAT", "CNI-0123456789abcdef01234567"} {
		must(t, sp.Run(exec.Command("iptables", "-w", "-t", "nat", "-N", chain)))
	}
	after, err := Inside(sp)
	must(t, err)
	leaks := fmt.Sprint(before.Diff(after))
	if !strings.Contains(leaks, "CNI-0123456789abcdef01234567") || strings.Contains(leaks, "HOSTPORT") {
		t.Errorf("found %s; wanted the chain of the pod alone", leaks)
	}
}

func TestCheckWaitsForWhatIsEnding(t *testing.T) {
	before, err := Machine()
	must(t, err)
	cmd := exec.Command("sleep", "0.3041")
	must(t, cmd.Start())
	go func() { _ = cmd.Wait() }()
	leaks, err := Check(before, Machine, Naming("0.3041"), timeouts.For(20*time.Second))
	if err != nil || len(leaks) != 0 {
		t.Errorf("a process that ended in time is reported: %v %v", leaks, err)
	}
}

// TestWhoseProcessItIs blames a run of tests for what it started and for what bears Berth's name, and for nobody
// else's.
func TestWhoseProcessItIs(t *testing.T) {
	for name, c := range map[string]struct {
		env   []string
		found bool
	}{
		"inherits the mark":            {os.Environ(), true},
		"somebody else's":              {[]string{"PATH=" + os.Getenv("PATH")}, false},
		"another run's":                {[]string{mark + "=another"}, false},
		"another run's, berth by name": {[]string{mark + "=another", "X=berth"}, false},
	} {
		before, err := Machine()
		must(t, err)
		cmd := exec.Command("sleep", "61.0418")
		cmd.Env = c.env
		must(t, cmd.Start())
		leaks, err := Check(before, Machine, Naming("61.0418"), 0)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if must(t, err); (len(leaks) > 0) != c.found {
			t.Errorf("%s: found %v", name, leaks)
		}
	}
	for detail, want := range map[string]bool{
		"berth-monitor -dir /tmp/bt-1/run in cgroup /":    true,
		"sleep 1 in cgroup /berth-0a1b2c/pod/container":   true,
		"docker-registry serve /tmp/bt-registry-1/config": true,
		"vim about-birthdays in cgroup /user.slice":       false,
	} {
		if got := named.MatchString(detail); got != want {
			t.Errorf("%q bears Berth's name: %v", detail, got)
		}
	}
}

// TestWhoseFileItIs leaves files of other users' sessions alone.
func TestWhoseFileItIs(t *testing.T) {
	needRoot(t)
	const name = "/dev/shm/hygiene-whose"
	for uid, found := range map[int]bool{0: true, 1000: false} {
		must(t, os.WriteFile(name, nil, 0o600))
		must(t, os.Chown(name, uid, uid))
		s, err := Machine()
		_ = os.Remove(name)
		must(t, err)
		if _, has := s[File][name]; has != found {
			t.Errorf("a file of user %d is seen: %v", uid, has)
		}
	}
}
