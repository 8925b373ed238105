package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/annotation"
	"berth/internal/fail"
	"berth/internal/record"
	"berth/test/timeouts"
)

const bridgeV4 = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	{"type": "bridge", "bridge": "%BRIDGE%", "isGateway": true, "ipMasq": true,
	 "ipam": {"type": "host-local", "dataDir": "%LEASES%", "ranges": [[{"subnet": "10.77.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
	{"type": "portmap", "capabilities": {"portMappings": true}}]}`

const bridgeDual = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	{"type": "bridge", "bridge": "%BRIDGE%", "isGateway": true, "ipMasq": true, "hairpinMode": true,
	 "ipam": {"type": "host-local", "dataDir": "%LEASES%", "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd00:77::/64"}]],
	          "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
	{"type": "portmap", "capabilities": {"portMappings": true}},
	{"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}}]}`

// listen answers "pod" to whoever connects to the port in a network namespace.
func listen(t *testing.T, netns string, port int) {
	t.Helper()
	listenAt(t, netns, "tcp", fmt.Sprintf(":%d", port))
}

func fetch(address string) string {
	c, err := net.DialTimeout("tcp", address, timeouts.For(time.Second))
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(timeouts.For(3 * time.Second)))
	data, _ := io.ReadAll(c)
	return string(data)
}

func TestAttachDualStack(t *testing.T) {
	h := newHost(t, bridgeDual)
	if st := h.Status(); !st.Ready || st.Network != "pods" || strings.Join(st.Plugins, " ") != "bridge portmap tuning" {
		t.Fatalf("%+v", st)
	}
	p := h.pod(Port{HostPort: 8088, ContainerPort: 80, Protocol: "TCP"}, Port{ContainerPort: 81})
	r := h.attach(p)
	want := []netip.Addr{netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("fd00:77::2")}
	if fmt.Sprint(r.IPs) != fmt.Sprint(want) {
		t.Fatalf("addresses %v", r.IPs)
	}
	var raw struct {
		Version string            `json:"cniVersion"`
		IPs     []json.RawMessage `json:"ips"`
	}
	if err := json.Unmarshal(r.Raw, &raw); err != nil || raw.Version != "1.0.0" || len(raw.IPs) != 2 {
		t.Errorf("raw result %s, %v", r.Raw, err)
	}
	listen(t, p.NetNS, 80)
	for _, address := range []string{"10.77.0.2:80", "[fd00:77::2]:80", "10.77.0.1:8088", "127.0.0.1:8088"} {
		// A new bridge looks for duplicates of its IPv6 address for a second or two before it uses it.
		got := ""
		for end := time.Now().Add(timeouts.For(30 * time.Second)); got != "pod" && time.Now().Before(end); {
			got = fetch(address)
		}
		if got != "pod" {
			t.Errorf("%s: %q", address, got)
		}
	}
	if got := enter(t, Namespaces{Net: p.NetNS}, "cat /proc/sys/net/ipv4/conf/eth0/arp_filter"); got != "1" {
		t.Errorf("tuning: %s", got)
	}
	h.detach(p)
	h.detach(p)
}

func TestCheck(t *testing.T) {
	h := newHost(t, bridgeV4)
	p := h.pod()
	h.attach(p)
	if err := h.Check(t.Context(), p); err != nil {
		t.Errorf("check: %v", err)
	}
	enter(t, Namespaces{Net: p.NetNS}, "ip route del default")
	if err := h.Check(t.Context(), p); err == nil || !strings.Contains(err.Error(), "CNI plugin bridge (CHECK") {
		t.Errorf("check of a pod without its route: %v", err)
	}
	h.detach(p)
	if err := h.Check(t.Context(), p); err == nil {
		t.Error("checked a detached pod")
	}
}

func TestAttachAgainMakesItAnew(t *testing.T) {
	h := newHost(t, bridgeV4)
	p := h.pod(Port{HostPort: 8090, ContainerPort: 80})
	h.attach(p)
	h.attach(p)
	if leases, _ := filepath.Glob(h.leases + "/pods/10.*"); len(leases) != 1 {
		t.Errorf("leases %v", leases)
	}
	h.detach(p)
}

func TestPodsInParallel(t *testing.T) {
	h := newHost(t, bridgeV4)
	pods := make([]Pod, 8)
	for i := range pods {
		pods[i] = h.pod(Port{HostPort: int32(9000 + i), ContainerPort: 80})
	}
	results := make([]Result, len(pods))
	var all sync.WaitGroup
	for i, p := range pods {
		all.Go(func() {
			var err error
			if results[i], err = h.Attach(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	seen := map[string]bool{}
	for _, r := range results {
		if s := fmt.Sprint(r.IPs); seen[s] {
			t.Errorf("%s twice", s)
		} else {
			seen[s] = true
		}
	}
	if ids, err := h.Attachments(); err != nil || len(ids) != len(pods) {
		t.Errorf("attachments %v, %v", ids, err)
	}
	for _, p := range pods {
		all.Go(func() {
			if err := h.Detach(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// script makes a plugin directory with a shell script as plugin, and returns a change of the configuration that
// searches it first.
func script(t testing.TB, name, text string) (dir string, change func(*Config)) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, func(c *Config) { c.PluginDirs = append([]string{dir}, debian...) }
}

// spy writes down what it is told and gives one address.
const spy = `d=$(dirname "$0"); cat >"$d/$CNI_COMMAND.stdin"; env | grep ^CNI_ >"$d/$CNI_COMMAND.env"
if [ "$CNI_COMMAND" = ADD ]; then echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.9.8.7/24"}]}'; fi`

func spied(t *testing.T, dir, verb string) (conf map[string]json.RawMessage, env string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, verb+".stdin"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &conf); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, verb+".env"))
	if err != nil {
		t.Fatal(err)
	}
	return conf, string(text)
}

func TestWhatPluginsAreTold(t *testing.T) {
	dir, change := script(t, "spy", spy)
	h := newHost(t, `{"cniVersion": "1.0.0", "name": "spied", "plugins": [{"type": "spy", "big": 9007199254740993,
		"capabilities": {"portMappings": true, "bandwidth": true, "dns": true, "cgroupPath": true, "ips": true, "mac": true, "infinibandGUID": false}}]}`, change)
	p := h.pod(Port{HostPort: 53, ContainerPort: 5353, Protocol: "UDP", HostIP: "127.0.0.1"}, Port{ContainerPort: 80})
	p.CgroupPath, p.DNS = "/kubepods/x",
		DNS{Servers: []string{"10.0.0.10"}, Searches: []string{"svc"}, Options: []string{"ndots:5"}}
	p.Annotations = map[string]string{
		annotation.KeyIngress: "1.5M", annotation.KeyIPs: "10.9.8.7, fd00::7",
		annotation.KeyMAC: "02:00:00:00:00:01", annotation.KeyInfiniband: "x",
	}
	if r := h.attach(p); fmt.Sprint(r.IPs) != "[10.9.8.7]" {
		t.Errorf("addresses %v", r.IPs)
	}
	conf, env := spied(t, dir, "ADD")
	want := `{"bandwidth":{"ingressRate":1500000,"ingressBurst":4294967295},"cgroupPath":"/kubepods/x",` +
		`"dns":{"servers":["10.0.0.10"],"searches":["svc"],"options":["ndots:5"]},"ips":["10.9.8.7","fd00::7"],"mac":"02:00:00:00:00:01",` +
		`"portMappings":[{"hostPort":53,"containerPort":5353,"protocol":"udp","hostIP":"127.0.0.1"}]}`
	if got := string(conf["runtimeConfig"]); got != want {
		t.Errorf("runtimeConfig %s", got)
	}
	if string(conf["big"]) != "9007199254740993" || string(conf["name"]) != `"spied"` ||
		string(conf["cniVersion"]) != `"1.0.0"` {
		t.Errorf("configuration %v", conf)
	}
	for _, line := range []string{
		"CNI_CONTAINERID=" + p.ID, "CNI_NETNS=" + p.NetNS, "CNI_IFNAME=eth0",
		"CNI_PATH=" + strings.Join(h.cfg.PluginDirs, ":"),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=" + p.ID +
			";K8S_POD_UID=uid-1",
	} {
		if !strings.Contains(env+"\n", line+"\n") {
			t.Errorf("no %s in %s", line, env)
		}
	}
	if err := Unpin(Namespaces{Net: p.NetNS}); err != nil {
		t.Fatal(err)
	}
	h.write("10-test.conflist", "{") // DEL goes by what ADD was told
	h.open()
	h.detach(Pod{ID: p.ID})
	conf, env = spied(t, dir, "DEL")
	if string(conf["runtimeConfig"]) != want || !strings.Contains(string(conf["prevResult"]), "10.9.8.7/24") ||
		string(conf["big"]) != "9007199254740993" {
		t.Errorf("DEL was told %v", conf)
	}
	if !strings.Contains(env, "CNI_NETNS=\n") || !strings.Contains(env, "K8S_POD_UID=uid-1") {
		t.Errorf("DEL ran with %s", env)
	}
}

func TestBadAnnotations(t *testing.T) {
	h := newHost(t, bridgeV4)
	for name, value := range map[string]string{
		annotation.KeyIngress: "much", annotation.KeyEgress: "10", annotation.KeyIPs: "10.0.0.300", annotation.KeyMAC: "zz",
	} {
		p := h.pod()
		p.Annotations = map[string]string{name: value}
		_, err := h.Attach(t.Context(), p)
		if !fail.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "annotation "+name+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPluginFailures(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"its own words", `echo '{"cniVersion":"1.0.0","code":100,"msg":"no address is free","details":"pool a"}'; exit 1`,
			`CNI plugin bad (ADD of network "n"): no address is free; pool a`},
		{"stderr", `echo "panic: oops" >&2; exit 2`, `CNI plugin bad (ADD of network "n"): exit status 2: panic: oops`},
		{"stdout", `echo "no licence"; exit 1`, `exit status 1; on stdout: no licence`},
		{"both", `echo why >&2; echo '{"code":999,"msg":"it failed"}'; exit 1`, `: it failed; on stderr: why`},
		{"twice", `echo why >&2; echo '{"code":999,"msg":"why: so"}'; exit 1`, `: why: so`},
		{"no answer", `exit 0`, `its answer is not a CNI result`},
		{"garbage", `echo hello`, `; on stdout: hello`},
		{"endless", `cat >/dev/null; yes`,
			`CNI plugin bad (ADD of network "n"): answer of a CNI plugin: more than the 4194304 bytes allowed`},
		{"no address", `echo '{"cniVersion":"1.0.0"}'`, `network "n" gave the pod no address: does a plugin in`},
		{"not a program", "\x00", `CNI plugin bad`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, change := script(t, "bad", "[ $CNI_COMMAND = ADD ] || exit 0\n"+c.text)
			h := newHost(t, `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bad"}]}`, change)
			p := h.pod()
			_, err := h.Attach(t.Context(), p)
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.HasPrefix(err.Error(), "attach network of pod default/web: ") {
				t.Errorf("%v", err)
			}
			h.detach(p)
		})
	}
}

// hanging hangs for the pod that is called so, with a grandchild in a session of its own that holds all pipes.
const hanging = `case "$CNI_COMMAND$CNI_ARGS" in
ADD*K8S_POD_NAME=hang\;*) setsid sh -c 'echo $$ >"$0.pid"; exec sleep 1000' "$0" & wait;;
ADD*) echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.9.8.7/24"}]}';;
esac`

func TestHangingPlugin(t *testing.T) {
	dir, change := script(t, "hangs", hanging)
	h := newHost(t, `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"hangs"}]}`, change)
	stuck, fine := h.pod(), h.pod()
	stuck.Name = "hang"
	done := make(chan error, 1)
	ctx, giveUp := context.WithCancel(context.Background())
	defer giveUp()
	go func() {
		_, err := h.Attach(ctx, stuck)
		done <- err
	}()
	pid := written(t, filepath.Join(dir, "hangs.pid"))
	h.attach(fine)
	h.detach(fine)
	select {
	case err := <-done:
		t.Fatalf("another pod waited until: %v", err)
	default:
	}
	giveUp()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	ends(t, pid)
	h.detach(stuck)

	h.cfg.AddTimeout = 700 * time.Millisecond
	h.open()
	begun := time.Now()
	_, err := h.Attach(context.Background(), stuck)
	var failed *PluginError
	if took := time.Since(begun); took > timeouts.For(30*time.Second) || !errors.As(err, &failed) ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after %v: %v", took, err)
	}
	if !strings.Contains(err.Error(), `CNI plugin hangs (ADD of network "n"): killed with its children after`) {
		t.Errorf("%v", err)
	}
	h.detach(stuck)
}

// written is what a plugin writes to a file, sooner or later.
func written(t *testing.T, path string) string {
	t.Helper()
	for end := time.Now().Add(timeouts.For(30 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
		if data, err := os.ReadFile(path); err == nil && len(data) > 0 {
			return strings.TrimSpace(string(data))
		}
		if time.Now().After(end) {
			t.Fatalf("nobody writes %s", path)
		}
	}
}

// ends wants a process ended, which was killed.
func ends(t *testing.T, pid string) {
	t.Helper()
	for end := time.Now().Add(timeouts.For(10 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %s lives: %s", pid, stat)
		}
	}
}

func TestDetachAfterTheNamespaceIsGone(t *testing.T) {
	// Debian's bridge plugin finds its masquerading rules by the addresses inside; a boot takes both away.
	h := newHost(t, strings.Replace(bridgeV4, `"ipMasq": true`, `"ipMasq": false`, 1))
	p := h.pod(Port{HostPort: 8091, ContainerPort: 80})
	h.attach(p)
	if err := Unpin(Namespaces{Net: p.NetNS}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.NetNS, nil, 0o444); err != nil { // as a boot leaves it where /run is on a disk
		t.Fatal(err)
	}
	h.open()
	h.detach(Pod{ID: p.ID})
}

// ofAnotherBoot makes a pod's attachment one of the boot before.
func (h *host) ofAnotherBoot(p Pod) {
	h.t.Helper()
	must(h.t, Unpin(Namespaces{Net: p.NetNS}))
	h.edit(p, func(a *attachment) { a.Boot = "another" })
}

// edit changes the record of a pod's attachment.
func (h *host) edit(p Pod, f func(*attachment)) {
	h.t.Helper()
	a, err := h.attachments.read(p.ID)
	must(h.t, err)
	f(a)
	must(h.t, h.attachments.write(a))
}

// TestDetachAfterTheAddressesAreGone has something inside the pod take the addresses from its interface, as gVisor
// does.
func TestDetachAfterTheAddressesAreGone(t *testing.T) {
	h := newHost(t, bridgeDual)
	p := h.pod(Port{HostPort: 8092, ContainerPort: 80})
	h.attach(p)
	output(t, "nsenter", "--net="+p.NetNS, "ip", "addr", "flush", "dev", "eth0")
	h.detach(p) // newHost wants nothing left of it
}

// TestDetachAfterTheInterfaceIsGone has no interface to give addresses back to.
func TestDetachAfterTheInterfaceIsGone(t *testing.T) {
	h := newHost(t, strings.Replace(bridgeV4, `"ipMasq": true`, `"ipMasq": false`, 1))
	p := h.pod()
	h.attach(p)
	output(t, "nsenter", "--net="+p.NetNS, "ip", "link", "del", "eth0")
	h.detach(p)
}

// TestDetachAfterAPowerCut finds leases as a power cut leaves them: names without a word of whose they are.
func TestDetachAfterAPowerCut(t *testing.T) {
	h := newHost(t, strings.Replace(bridgeV4, `"ipMasq": true`, `"ipMasq": false`, 1))
	p, lives := h.pod(), h.pod()
	addr := h.attach(p).IPs[0].String()
	kept := h.attach(lives).IPs[0].String()
	dir := filepath.Join(h.leases, "pods")
	for _, name := range []string{addr, "10.77.0.99", "not-an-address"} { // the second's pod is forgotten altogether
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Unpin(Namespaces{Net: p.NetNS}); err != nil {
		t.Fatal(err)
	}
	h.detach(p)
	for name, want := range map[string]bool{addr: false, "10.77.0.99": false, kept: true, "not-an-address": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s is there: %v, wanted %v", name, err == nil, want)
		}
	}
	if err := os.Remove(filepath.Join(dir, "not-an-address")); err != nil {
		t.Error(err)
	}
	h.detach(lives)
}

func TestDetachAfterTheConfigurationChanged(t *testing.T) {
	h := newHost(t, bridgeV4)
	p, q := h.pod(), h.pod()
	h.attach(p)
	h.attach(q)
	h.write("10-test.conflist",
		`{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}]}`)
	h.open()
	h.detach(p)
	if err := os.RemoveAll(h.cfg.ConfigDir); err != nil {
		t.Fatal(err)
	}
	h.open()
	h.detach(q)
}

func TestPluginUninstalled(t *testing.T) {
	dir, change := script(t, "spy", spy)
	h := newHost(t, `{"cniVersion": "1.0.0", "name": "spied", "plugins": [{"type": "spy"}]}`, change)
	p := h.pod()
	h.attach(p)
	if err := os.Remove(filepath.Join(dir, "spy")); err != nil {
		t.Fatal(err)
	}
	err := h.Detach(t.Context(), p)
	var missing *MissingPluginError
	var failed *DetachError
	record := filepath.Join(h.cfg.CacheDir, p.ID)
	if !errors.As(err, &missing) || !errors.As(err, &failed) ||
		!strings.Contains(err.Error(), "if it is gone for good, remove "+record) {
		t.Fatalf("%v", err)
	}
	if ids, err := h.Attachments(); err != nil || len(ids) != 1 || ids[0] != p.ID {
		t.Errorf("%v, %v", ids, err)
	}
	for range 2 {
		if err := h.Forget(p.ID); err != nil {
			t.Error(err)
		}
	}
	h.detach(p)
}

func TestDamagedRecord(t *testing.T) {
	h := newHost(t, bridgeV4)
	p := h.pod(Port{HostPort: 8092, ContainerPort: 80})
	h.attach(p)
	path := filepath.Join(h.cfg.CacheDir, p.ID)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()/2); err != nil {
		t.Fatal(err)
	}
	h.detach(p)
	if err := os.WriteFile(path, []byte("berth-record network v99 sha256=0 len=0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.Detach(t.Context(), p); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("a record of a later release: %v", err)
	}
	if err := h.Forget(p.ID); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"", ".", "..", "../x", "a/b", ".tmp-x"} {
		if err := h.Forget(id); err == nil {
			t.Errorf("took %q for a pod", id)
		}
	}
}

// TestTornRecordDetachesByTheOneBefore undoes an attachment whose record a power cut tore by what was on the disk
// before, though the configuration is another one by then, or none.
func TestTornRecordDetachesByTheOneBefore(t *testing.T) {
	flusher := &record.Flusher{}
	h := newHost(t, bridgeV4, func(c *Config) { c.DirtyRecord = flusher.DirtyRecord })
	p := h.pod()
	h.attach(p)
	if err := flusher.Flush(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(h.cfg.CacheDir, p.ID)
	if err := errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)); err != nil { // written anew, and torn
		t.Fatal(err)
	}
	h.current.Store(&snapshot{})
	if err := h.Check(t.Context(), p); err != nil {
		t.Errorf("what is known of the attachment: %v", err)
	}
	h.detach(p)
	if left, err := os.ReadDir(h.cfg.CacheDir); err != nil || len(left) > 0 {
		t.Errorf("left of the record: %v, %v", left, err)
	}
}

func TestNoConfiguration(t *testing.T) {
	h := newHost(t, "")
	var not *NotReadyError
	if _, err := h.Attach(t.Context(), h.pod()); !errors.As(err, &not) ||
		!strings.Contains(err.Error(), h.cfg.ConfigDir+" has no *.conflist") {
		t.Errorf("%v", err)
	}
}

// BenchmarkAttach shows what Attach and Detach cost beside the bare plugins, which is what no runtime can be faster
// than. They take turns, so that whatever else the machine does is fair to both. The numbers are medians.
func BenchmarkAttach(b *testing.B) {
	h := newHost(b, bridgeV4)
	p := h.pod(Port{HostPort: 8093, ContainerPort: 80})
	times := map[string][]time.Duration{}
	clock := func(name string, f func()) {
		begun := time.Now()
		f()
		times[name] = append(times[name], time.Since(begun))
	}
	for b.Loop() {
		var result json.RawMessage
		clock("attach-ms", func() { h.attach(p) })
		clock("detach-ms", func() { h.detach(p) })
		clock("bare-add-ms", func() { result = bare(b, h, p, "ADD", nil) })
		clock("bare-del-ms", func() { bare(b, h, p, "DEL", result) })
	}
	for name, all := range times {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name)
	}
}

// bare runs the plugins of the list one after the other, and does nothing else.
func bare(b *testing.B, h *host, p Pod, verb string, prev json.RawMessage) json.RawMessage {
	caps, err := capabilities(p)
	if err != nil {
		b.Fatal(err)
	}
	on := &attached{Config: *h.current.Load().conf, IfName: ifName, Args: kubernetesArgs(p), Capabilities: caps}
	c := &call{
		settings: h.inForce, run: h.run, verb: verb, conf: &on.Config, pod: p.ID, netns: p.NetNS, on: on,
	}
	order := []int{0, 1}
	if verb == "DEL" {
		order = []int{1, 0}
	}
	for _, i := range order {
		conf, err := c.config(on.Config.Plugins[i], prev)
		if err != nil {
			b.Fatal(err)
		}
		path, err := find(on.Config.Plugins[i].Type, debian)
		if err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command(path)
		cmd.Env, cmd.Stdin = c.args().AsEnv(), strings.NewReader(string(conf))
		out, err := cmd.Output()
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		if verb == "ADD" {
			prev = out
		}
	}
	return prev
}
