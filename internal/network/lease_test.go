package network

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// delegating is a plugin that has host-local give the addresses, of which the network's configuration says nothing, as
// flannel does.
const delegating = `cat >/dev/null; real=/usr/lib/cni/host-local; [ -x $real ] || real=/opt/cni/bin/host-local
echo '{"cniVersion":"1.0.0","name":"cbr0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.77.0.0/24"}]]}}' | $real`

// TestPowerCutWithDelegatedLeases finds leases as a power cut leaves them where host-local is run by another plugin.
func TestPowerCutWithDelegatedLeases(t *testing.T) {
	must(t, unix.Mount("tmpfs", "/var/lib", "tmpfs", 0, "")) // in this test's own mount namespace
	t.Cleanup(func() { must(t, unix.Unmount("/var/lib", unix.MNT_DETACH)) })
	_, change := script(t, "flannel", delegating)
	h := newHost(t, `{"cniVersion": "1.0.0", "name": "cbr0", "plugins": [{"type": "flannel"}]}`, change)
	p, lives := h.pod(), h.pod()
	torn := h.attach(p).IPs[0].String()
	kept := h.attach(lives).IPs[0].String()
	dir := filepath.Join(hostLocalData, "cbr0")
	for _, name := range []string{torn, "10.77.0.99"} { // the second's pod is forgotten altogether
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	h.ofAnotherBoot(p)
	h.detach(p)
	for name, want := range map[string]bool{torn: false, "10.77.0.99": false, kept: true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s is there: %v, wanted %v", name, err == nil, want)
		}
	}
	h.detach(lives)
}
