package network

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// TestDetachOfAPodWithManyInterfaces has a pod fill its network namespace. What the daemon needs to give the addresses
// of the pod's own interface back does not grow with that.
func TestDetachOfAPodWithManyInterfaces(t *testing.T) {
	h := newHost(t, bridgeV4)
	p := h.pod()
	h.attach(p)
	a, err := h.attachments.read(p.ID)
	must(t, err)
	var links strings.Builder
	for i := range 200 {
		fmt.Fprintf(&links, "link add many%d type bridge\n", i)
	}
	fill := exec.Command("ip", "-n", strings.TrimPrefix(p.NetNS, netnsDir+"/"), "-batch", "-")
	fill.Stdin = strings.NewReader(links.String())
	if out, err := fill.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	output(t, "nsenter", "--net="+p.NetNS, "ip", "addr", "flush", "dev", "eth0")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	must(t, restore(p.NetNS, &a.Networks[0]))
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 256<<10 {
		t.Errorf("restore has allocated %d bytes for one interface", used)
	}
	if got := enter(t, Namespaces{Net: p.NetNS}, "ip -o addr show dev eth0"); !strings.Contains(got, "10.77.0.2/24") {
		t.Errorf("eth0 has %s", got)
	}
	h.detach(p)
}
