package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
	"berth/test/timeouts"
)

func TestCount(t *testing.T) {
	ns := testNamespaces(t, 40)
	if err := Pin(ns); err != nil {
		t.Fatal(err)
	}
	enter(t, ns, `ip link add a0 type veth peer name a1; ip link add eth0 type veth peer name peer0
		ip addr add 10.9.9.1/24 dev eth0; ip link set eth0 up; ip link set peer0 up
		until ip link show eth0 | grep -q 'state UP'; do sleep 0.05; done
		ip neigh add 10.9.9.2 lladdr 02:00:00:00:00:02 dev eth0
		for i in 1 2 3; do head -c 1000 /dev/zero | bash -c 'cat > /dev/udp/10.9.9.2/9'; done`)
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := open()
	missing := filepath.Join(t.TempDir(), "pin")
	if err := os.WriteFile(missing, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var all []Traffic
	for range 50 {
		all = Count(missing, ns.Net, missing+"2")
	}
	if !errors.Is(all[0].Err, unix.ENOENT) || !errors.Is(all[2].Err, unix.ENOENT) {
		t.Errorf("errors of pins that are not there: %v, %v", all[0].Err, all[2].Err)
	}
	got := all[1]
	if got.Err != nil || len(got.Interfaces) != 4 || got.Interfaces[0].Name != "eth0" {
		t.Fatalf("%+v", got)
	}
	if e := got.Interfaces[0]; e.TxPackets < 3 || e.TxBytes < 3*1000 || e.RxErrors != 0 {
		t.Errorf("%+v", e)
	}
	after, away := open(), strayThreads(here)
	// the thread ends a little later
	for end := time.Now().Add(timeouts.For(10 * time.Second)); (after > before || len(away) > 0) &&
		time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		after, away = open(), strayThreads(here)
	}
	if after > before || len(away) > 0 {
		t.Errorf("%d descriptors, before %d; threads in another network namespace: %v", after, before, away)
	}
	// Nothing keeps the namespace alive.
	if err := Unpin(ns); err != nil {
		t.Fatal(err)
	}
	if all := Count(ns.Net); !errors.Is(all[0].Err, unix.ENOENT) {
		t.Error(all[0].Err)
	}
	if all := Count(); len(all) != 0 {
		t.Error(all)
	}
}

// TestCountStrangeNames counts what interfaces carry whose names are no UTF-8: protobuf refuses to encode such a text.
func TestCountStrangeNames(t *testing.T) {
	ns := testNamespaces(t, 42)
	if err := Pin(ns); err != nil {
		t.Fatal(err)
	}
	enter(t, ns, `ip link add "$(printf '\377')" type veth peer name "$(printf '\376')"
		ip link add "$(printf 'a\303')" type veth peer name "$(printf '\303\244')"
		ip link add eth0 type veth peer name peer0`)
	all := Count(ns.Net)
	var names []string
	for _, c := range all[0].Interfaces {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	if want := []string{"?", "a?", "eth0", "peer0", "ä"}; all[0].Err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v; wanted %q", names, all[0].Err, want)
	}
}

// TestWhichInterfacesAreCounted makes those of containers inside a pod, which cAdvisor leaves out, then more than are
// told, and the pod's own as the last.
func TestWhichInterfacesAreCounted(t *testing.T) {
	ns := testNamespaces(t, 43)
	if err := Pin(ns); err != nil {
		t.Fatal(err)
	}
	told := func() (names []string) {
		t.Helper()
		all := Count(ns.Net)
		if all[0].Err != nil {
			t.Fatal(all[0].Err)
		}
		for _, c := range all[0].Interfaces {
			names = append(names, c.Name)
		}
		return names
	}
	enter(t, ns, `ip link add vethb0 type veth peer name docker0; ip link add Veth1 type veth peer name nerdctl0
		ip link add net1 type veth peer name lo1`)
	if got := told(); !slices.Equal(got, []string{"net1"}) {
		t.Errorf("%q are told", got)
	}
	most := int(limit.PodInterfaces.Limit)
	enter(t, ns, fmt.Sprintf(`for i in $(seq %d); do echo "link add a$i type veth peer name b$i"; done | ip -batch -
		ip link add eth0 type veth peer name peer0`, most))
	if got := told(); len(got) != most || got[0] != ifName || got[1] != "net1" {
		t.Errorf("%d are told: %q", len(got), got)
	}
}

func BenchmarkCount(b *testing.B) {
	ns := testNamespaces(b, 41)
	if err := Pin(ns); err != nil {
		b.Fatal(err)
	}
	enter(b, ns, "ip link add eth0 type veth peer name peer0")
	paths := make([]string, 100)
	for i := range paths {
		paths[i] = ns.Net
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, t := range Count(paths...) {
			if t.Err != nil {
				b.Fatal(t.Err)
			}
		}
	}
}
