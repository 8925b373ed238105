package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/helper"
	"berth/test/timeouts"
)

// inside tells the test binary that it runs in network and mount namespaces of its own, so that bridges, rules and pins
// of tests are not the machine's.
const inside = "BERTH_TEST_NETWORK_INSIDE"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "hold" { // as the holder of a user namespace
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		fmt.Println("network: skipped: needs root")
		os.Exit(0)
	}
	if os.Getenv(inside) == "" {
		os.Exit(again())
	}
	if order := os.Getenv(daemonOrder); order != "" {
		os.Exit(obey(order))
	}
	if err := settleIn(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	code := m.Run()
	if err := errors.Join(runner.Sweep(), cgroup.At(filepath.Dir(runner.Root)).Remove()); err != nil {
		fmt.Println("left behind:", err)
		code = 1
	}
	os.Exit(code)
}

// again runs the test binary inside.
func again() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return max(exit.ExitCode(), 1)
		}
		fmt.Println(err)
		return 1
	}
	return 0
}

// settleIn makes the namespaces a host for pods.
func settleIn() error {
	if err := errors.Join(os.MkdirAll(netnsDir, 0o755), unix.Mount("tmpfs", netnsDir, "tmpfs", 0, ""),
		loopbackUp()); err != nil {
		return err
	}
	for _, file := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := writeSysctl(file, "1"); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	state := filepath.Join(os.TempDir(), fmt.Sprintf("berth-network-test-%d", os.Getpid()))
	top, err := cgroup.Tracking(state)
	if err != nil {
		return err
	}
	g, err := cgroup.Make(top, filepath.Base(state)+"/ops")
	if err != nil {
		return err
	}
	runner = &helper.Runner{Root: g.Path()}
	return nil
}

const netnsDir = "/run/netns"

// runner runs the plugins of all tests.
var runner *helper.Runner

// host is what one test's networks use.
type host struct {
	*Network
	*CNIConfig
	t       testing.TB
	cfg     Config
	leases  string
	bridge  string
	baseNow string
}

var hosts int

// debian are the directories of the machine's own plugins.
var debian = []string{"/opt/cni/bin", "/usr/lib/cni"}

// newHost opens a network with the given configuration file, in which %BRIDGE% and %LEASES% stand for names of this
// test's own. After the test nothing of it may be left.
func newHost(t testing.TB, conflist string, change ...func(*Config)) *host {
	t.Helper()
	hosts++
	dir := t.TempDir()
	h := &host{t: t, leases: filepath.Join(dir, "leases"), bridge: fmt.Sprintf("bt%d", hosts)}
	h.cfg = Config{
		ConfigDir: filepath.Join(dir, "etc/net.d"), PluginDirs: debian, CacheDir: filepath.Join(dir, "cni"), Run: runner.Run,
		AddTimeout: 90 * time.Second, DelTimeout: time.Minute,
	}
	for _, f := range change {
		f(&h.cfg)
	}
	if err := os.MkdirAll(h.cfg.ConfigDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if conflist != "" {
		h.write("10-test.conflist", conflist)
	}
	h.baseNow = rules(t)
	h.open()
	t.Cleanup(h.leftovers)
	return h
}

// open opens the network anew, as a daemon that starts does.
func (h *host) open() {
	h.t.Helper()
	if h.Network != nil {
		if err := h.Close(); err != nil {
			h.t.Fatal(err)
		}
	}
	n, err := Open(h.cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Network, h.CNIConfig = n, n.CNI
}

func (h *host) write(name, conf string) {
	h.t.Helper()
	conf = strings.NewReplacer("%BRIDGE%", h.bridge, "%LEASES%", h.leases).Replace(conf)
	if err := os.WriteFile(filepath.Join(h.cfg.ConfigDir, name), []byte(conf), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// leftovers fails the test for whatever is left on the host when all its pods are gone.
func (h *host) leftovers() {
	_ = h.Close()
	if ids, err := h.Attachments(); err != nil || len(ids) > 0 {
		h.t.Errorf("left attachments %v, %v", ids, err)
	}
	if leases, _ := filepath.Glob(h.leases + "/*/[0-9a-f]*[.:]*"); len(leases) > 0 {
		h.t.Errorf("left leases %v", leases)
	}
	if left, _ := filepath.Glob(netnsDir + "/*"); len(left) > 0 {
		h.t.Errorf("left pins %v", left)
	}
	if left, _ := filepath.Glob(runner.Root + "/*/cgroup.procs"); len(left) > 0 {
		h.t.Errorf("left cgroups %v", left)
	}
	_ = exec.Command("ip", "link", "del", h.bridge).Run() // the plugin keeps its bridge for the next pod
	for end := time.Now().Add(timeouts.For(time.Minute)); ; time.Sleep(10 * time.Millisecond) {
		veths := output(h.t, "ip", "-o", "link", "show", "type", "veth") // the kernel removes them with their namespace, soon
		if veths == "" {
			break
		}
		if time.Now().After(end) {
			h.t.Errorf("left interfaces %s", veths)
			break
		}
	}
	if now := rules(h.t); now != h.baseNow {
		h.t.Errorf("left rules:\n%s", now)
	}
}

// rules lists the rules of iptables, without the chains that plugins share and keep.
func rules(t testing.TB) string {
	var kept []string
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, line := range strings.Split(output(t, tool, "-w", "-t", "nat", "-S"), "\n") {
			if strings.Contains(line, "-A CNI-") || strings.Contains(line, "-N CNI-DN-") || strings.Contains(line, "CNI-") &&
				strings.Contains(line, "-A POSTROUTING -s") {
				if !strings.Contains(line, "-A CNI-HOSTPORT-SETMARK") && !strings.Contains(line, "-A CNI-HOSTPORT-MASQ") {
					kept = append(kept, tool+" "+line)
				}
			}
		}
	}
	return strings.Join(kept, "\n")
}

func output(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

var pods int

// pod makes a pod with a network namespace, which is gone after the test.
func (h *host) pod(ports ...Port) Pod {
	h.t.Helper()
	pods++
	id := fmt.Sprintf("%064x", pods)
	p := Pod{ID: id, Name: "web", Namespace: "default", UID: "uid-1", NetNS: filepath.Join(netnsDir, "berth-"+id),
		Ports: ports}
	if err := Pin(Namespaces{Net: p.NetNS}); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if err := Unpin(Namespaces{Net: p.NetNS}); err != nil {
			h.t.Error(err)
		}
	})
	return p
}

func (h *host) attach(p Pod) Result {
	h.t.Helper()
	r, err := h.Attach(context.Background(), p)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

func (h *host) detach(p Pod) {
	h.t.Helper()
	if err := h.Detach(context.Background(), p); err != nil {
		h.t.Fatal(err)
	}
}
