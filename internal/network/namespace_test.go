package network

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/thread"
	"berth/internal/userns"
)

func testNamespaces(t testing.TB, id int) Namespaces {
	dir := t.TempDir()
	ns := Namespaces{
		Net: fmt.Sprintf("%s/berth-%064x", netnsDir, id), IPC: dir + "/ns/ipc", UTS: dir + "/ns/uts", Hostname: "pod-a",
		Sysctls: map[string]string{"net.ipv4.ip_local_port_range": "20000\t30000", "kernel.shmmax": "12345678",
			"kernel/msgmax": "9999", "fs.mqueue.msg_max": "20"},
	}
	t.Cleanup(func() {
		if err := Unpin(ns); err != nil {
			t.Error(err)
		}
	})
	return ns
}

// enter runs a shell in the pinned namespaces.
func enter(t testing.TB, ns Namespaces, script string) string {
	t.Helper()
	args := []string{"--net=" + ns.Net}
	if ns.IPC != "" {
		args = append(args, "--ipc="+ns.IPC)
	}
	if ns.UTS != "" {
		args = append(args, "--uts="+ns.UTS)
	}
	out, err := exec.Command("nsenter", append(args, "sh", "-ec", script)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestPin(t *testing.T) {
	before := output(t, "sh", "-c", "hostname; cat /proc/sys/kernel/shmmax /proc/sys/net/ipv4/ip_local_port_range; "+
		"readlink /proc/self/ns/net")
	ns := testNamespaces(t, 1)
	if err := Pin(ns); err != nil {
		t.Fatal(err)
	}
	got := enter(t, ns,
		`hostname; cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/kernel/shmmax /proc/sys/kernel/msgmax /proc/sys/fs/mqueue/msg_max
		ip -o addr show lo | awk '{print $4}'; ip link show lo | grep -o LOWER_UP; ls /sys/class/net >/dev/null; ip -o link | wc -l`)
	if want := "pod-a\n20000\t30000\n12345678\n9999\n20\n127.0.0.1/8\n::1/128\nLOWER_UP\n1"; got != want {
		t.Errorf("inside:\n%s", got)
	}
	if after := output(t, "sh", "-c", "hostname; cat /proc/sys/kernel/shmmax /proc/sys/net/ipv4/ip_local_port_range; "+
		"readlink /proc/self/ns/net"); after != before {
		t.Errorf("the host changed: %s, was %s", after, before)
	}
	id := func() string { return enter(t, ns, "readlink /proc/self/ns/net /proc/self/ns/ipc /proc/self/ns/uts") }
	was := id()
	old, err := os.Open(ns.Net) // no other namespace gets its number while it is open
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := Pin(ns); err != nil || id() != was {
		t.Errorf("pinned again, it is another: %v", err)
	}
	if err := unix.Unmount(ns.IPC, 0); err != nil { // as if the daemon had been killed halfway
		t.Fatal(err)
	}
	if err := Pin(ns); err != nil || id() == was {
		t.Errorf("half of it was kept: %v", err)
	}
	for range 2 {
		if err := Unpin(ns); err != nil {
			t.Error(err)
		}
	}
	mounts := output(t, "cat", "/proc/self/mountinfo")
	for _, path := range []string{ns.Net, ns.IPC, ns.UTS} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) || strings.Contains(mounts, path) {
			t.Errorf("left %s: %v", path, err)
		}
	}
}

// inUserns makes the namespaces belong to a user namespace.
func inUserns(ns Namespaces) Namespaces {
	ids := []userns.Range{{Inside: 0, Host: 100000, Size: 65536}}
	ns.User, ns.Holder = filepath.Dir(ns.IPC)+"/user", "/proc/self/exe"
	ns.IDs = userns.Mapping{UIDs: ids, GIDs: ids}
	return ns
}

func TestPinUser(t *testing.T) {
	ns := inUserns(testNamespaces(t, 7))
	t.Cleanup(func() { _ = Unpin(ns) })
	if err := Pin(ns); err != nil {
		t.Fatal(err)
	}
	if err := Pin(ns); err != nil {
		t.Fatal("pinned again: ", err)
	}
	// Root of the user namespace has power over what belongs to it, and that was set up before.
	got := output(t, "nsenter", "--user="+ns.User, "--net="+ns.Net, "--ipc="+ns.IPC, "--uts="+ns.UTS, "sh", "-ec", `
		hostname; cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/kernel/shmmax /proc/sys/kernel/msgmax /proc/sys/fs/mqueue/msg_max
		id -u; cat /proc/self/uid_map | xargs; ip link add dummy0 type dummy 2>/dev/null || ip link add v0 type veth peer name v1; hostname b; hostname
		unshare --mount sh -ec 'mount -t mqueue queues /mnt; stat -c %u:%g /mnt'`)
	if want := "pod-a\n20000\t30000\n12345678\n9999\n20\n0\n0 100000 65536\nb\n0:0"; strings.TrimSpace(got) != want {
		t.Errorf("inside:\n%s", got)
	}
	if children, _ := os.ReadFile("/proc/thread-self/children"); len(children) > 0 {
		t.Errorf("the holder is left: %s", children)
	}
	for range 2 {
		if err := Unpin(ns); err != nil {
			t.Error(err)
		}
	}
	if mounts := output(t, "cat", "/proc/self/mountinfo"); strings.Contains(mounts, filepath.Dir(ns.User)) {
		t.Errorf("left mounts:\n%s", mounts)
	}
}

func TestPinUserFails(t *testing.T) {
	for name, spoil := range map[string]func(*Namespaces){
		"program": func(ns *Namespaces) { ns.Holder = "/no/such" },
		"ids":     func(ns *Namespaces) { ns.IDs.UIDs[0].Inside = 5 },
		"sysctl":  func(ns *Namespaces) { ns.Sysctls = map[string]string{"kernel.shmmax": "none"} },
	} {
		ns := inUserns(testNamespaces(t, 8))
		spoil(&ns)
		if err := Pin(ns); err == nil {
			t.Errorf("%s: pinned", name)
		}
		for _, path := range []string{ns.Net, ns.IPC, ns.UTS, ns.User} {
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: left %s: %v", name, path, err)
			}
		}
	}
}

func TestPinUndoesWhatItCannotFinish(t *testing.T) {
	ns := testNamespaces(t, 2)
	ns.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "none"}
	var bad *SysctlError
	if err := Pin(ns); !errors.As(err, &bad) || bad.Name != "net.ipv4.ip_local_port_range" {
		t.Fatalf("%v", err)
	}
	ns.Sysctls = nil
	ns.Net = filepath.Join(t.TempDir(), "file", "net") // its directory is a file: the last mount fails
	if err := os.WriteFile(filepath.Dir(ns.Net), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Pin(ns); err == nil {
		t.Fatal("pinned below a file")
	}
	for _, path := range []string{ns.IPC, ns.UTS} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left %s: %v", path, err)
		}
	}
}

func TestSysctls(t *testing.T) {
	all := Namespaces{Net: "n", IPC: "i", UTS: "u"}
	for _, c := range []struct {
		ns   Namespaces
		name string
		want sysctl
		err  string
	}{
		{all, "net.ipv4.ip_forward", sysctl{"net/ipv4/ip_forward", false}, ""},
		{all, "net/ipv4/ip_forward", sysctl{"net/ipv4/ip_forward", false}, ""},
		{all, "net.ipv4.conf.eth0/100.forwarding", sysctl{"net/ipv4/conf/eth0.100/forwarding", true}, ""},
		{all, "net/ipv4/conf/eth0.100/forwarding", sysctl{"net/ipv4/conf/eth0.100/forwarding", true}, ""},
		{all, "net.ipv6.conf.all.disable_ipv6", sysctl{"net/ipv6/conf/all/disable_ipv6", false}, ""},
		{all, "net.ipv4.neigh.eth0.gc_stale_time", sysctl{"net/ipv4/neigh/eth0/gc_stale_time", true}, ""},
		{all, "kernel.shm_rmid_forced", sysctl{"kernel/shm_rmid_forced", false}, ""},
		{all, "kernel.domainname", sysctl{"kernel/domainname", false}, ""},
		{all, "vm.swappiness", sysctl{}, "whole host only"},
		{all, "kernel.panic", sysctl{}, "whole host only"},
		{all, "net/../kernel/panic", sysctl{}, "not a sysctl's name"},
		{all, "/proc/sys/net/x", sysctl{}, "not a sysctl's name"},
		{all, "", sysctl{}, "not a sysctl's name"},
		{all, "net", sysctl{}, "whole host only"},
		{Namespaces{IPC: "i"}, "net.ipv4.ip_forward", sysctl{}, "host's network namespace"},
		{Namespaces{Net: "n"}, "kernel.sem", sysctl{}, "host's IPC namespace"},
		{Namespaces{Net: "n"}, "kernel.hostname", sysctl{}, "host's UTS namespace"},
	} {
		got, err := c.ns.sysctl(c.name)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %v, %v", c.name, got, err)
		}
	}
	if err := Pin(Namespaces{Sysctls: map[string]string{"net.ipv4.ip_forward": "1"}}); err == nil {
		t.Error("set a sysctl of the host")
	}
}

func TestInterfaceSysctls(t *testing.T) {
	ns := testNamespaces(t, 3)
	ns.Sysctls = map[string]string{"net.ipv4.conf.eth0.rp_filter": "2", "net.ipv4.conf.all.rp_filter": "0"}
	if err := Pin(ns); err != nil {
		t.Fatal(err)
	}
	if err := SetInterfaceSysctls(ns); err == nil {
		t.Error("set a sysctl of no interface")
	}
	enter(t, ns, "ip link add eth0 type veth peer name peer0")
	if err := SetInterfaceSysctls(ns); err != nil {
		t.Fatal(err)
	}
	if got := enter(t, ns, "cat /proc/sys/net/ipv4/conf/eth0/rp_filter"); got != "2" {
		t.Errorf("rp_filter %s", got)
	}
}

func TestSweepPins(t *testing.T) {
	ids := make([]string, 4)
	for i := range ids {
		ids[i] = fmt.Sprintf("%064x", i+100)
	}
	pin := func(name string) string {
		path := filepath.Join(netnsDir, name)
		if err := Pin(Namespaces{Net: path}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unpin(path) })
		return path
	}
	live, dead, other, foreign := pin("berth-"+ids[0]), pin("berth-"+ids[1]), pin("berth-a1b2c3-"+ids[2]),
		pin("berth-mine")
	file := filepath.Join(netnsDir, "berth-"+ids[3]) // of a boot before this one
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := SweepPins(netnsDir, "berth-", func(id string) bool { return id == ids[0] }); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{live: true, dead: false, other: true, foreign: true, file: false} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := SweepPins("/nonexistent", "berth-", nil); err != nil {
		t.Error(err)
	}
}

func TestPinsInParallel(t *testing.T) {
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			ns := Namespaces{Net: fmt.Sprintf("%s/berth-%064x", netnsDir, 200+i)}
			if err := errors.Join(Pin(ns), Unpin(ns)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func BenchmarkPin(b *testing.B) {
	for _, c := range []struct {
		name string
		ns   Namespaces
	}{
		{"net", Namespaces{Net: netnsDir + "/berth-b"}},
		{"net+ipc+uts", Namespaces{Net: netnsDir + "/berth-b", IPC: b.TempDir() + "/ipc", UTS: b.TempDir() + "/uts",
			Hostname: "b"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if err := Pin(c.ns); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := Unpin(c.ns); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
		b.Run(c.name+"/unpin", func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				if err := Pin(c.ns); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if err := Unpin(c.ns); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestUnpinUnmountsOnce counts the unmounts of namespaces that are unpinned at a pod's stop and again at its removal.
func TestUnpinUnmountsOnce(t *testing.T) {
	dir := t.TempDir()
	calls := 0
	unmount = func(path string, flags int) error {
		if strings.HasPrefix(path, dir) {
			calls++
		}
		return unix.Unmount(path, flags)
	}
	t.Cleanup(func() { unmount = unix.Unmount })
	ns := Namespaces{Net: dir + "/net", IPC: dir + "/ipc", UTS: dir + "/uts"}
	if err := Pin(ns); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Unpin(ns); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 3 {
		t.Errorf("%d unmounts of 3 pins", calls)
	}
}

// TestDefaultSysctls sets defaults where the pod sets nothing itself, and passes over those that cannot be set.
func TestDefaultSysctls(t *testing.T) {
	dir := t.TempDir()
	ns := Namespaces{
		Net:     dir + "/net",
		Sysctls: map[string]string{"net/ipv4/ping_group_range": "7 8"},
		Defaults: map[string]string{
			"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647", "net.ipv4.nonesuch": "1",
			"net.ipv4.tcp_syncookies": "no number", "kernel.msgmax": "9999", "net.ipv4.conf.eth0.rp_filter": "1",
		},
	}
	if err := Pin(ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Unpin(ns) })
	err := thread.Run(func() error {
		if err := join(ns.Net, unix.CLONE_NEWNET); err != nil {
			return err
		}
		for file, want := range map[string]string{"ip_unprivileged_port_start": "0", "ping_group_range": "7 8"} {
			got, err := os.ReadFile("/proc/sys/net/ipv4/" + file)
			if err != nil || strings.Join(strings.Fields(string(got)), " ") != want {
				t.Errorf("%s is %q, %v; wanted %s", file, got, err, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestUnpinBelowAnotherMount has the directory of pins be mounted over itself, as "ip netns add" does at first, where
// it is not shared. What the error says to do helps.
func TestUnpinBelowAnotherMount(t *testing.T) {
	ns := Namespaces{Net: filepath.Join(netnsDir, "berth-covered")}
	must(t, Pin(ns), unix.Mount("", netnsDir, "", unix.MS_PRIVATE, ""),
		unix.Mount(netnsDir, netnsDir, "", unix.MS_BIND|unix.MS_REC, ""))
	for range 2 {
		err := Unpin(ns)
		if !fail.Is(err, errdefs.ErrFailedPrecondition) ||
			!strings.Contains(fail.Details(err).Remedy, "umount -l "+netnsDir) ||
			!strings.Contains(err.Error(), "umount -l "+netnsDir) {
			t.Errorf("%v, %+v", err, fail.Details(err))
		}
	}
	output(t, "umount", "-l", netnsDir)
	must(t, Unpin(ns))
}
