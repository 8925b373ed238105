package network

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// TestAddresses are those of the pod, also where a plugin names its interface without a sandbox; those of the node's
// interfaces are not.
func TestAddresses(t *testing.T) {
	at := func(n int, ip string) *types100.IPConfig {
		return &types100.IPConfig{Interface: &n, Address: net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(24, 32)}}
	}
	own, terse := &types100.Interface{Name: "eth0", Sandbox: "/n"}, &types100.Interface{Name: "eth0"}
	other, bridge := &types100.Interface{Name: "net1", Sandbox: "/n"}, &types100.Interface{Name: "cni0"}
	for name, c := range map[string]struct {
		interfaces []*types100.Interface
		want       string
	}{
		"its own":             {[]*types100.Interface{bridge, own}, "10.0.0.2"},
		"without its sandbox": {[]*types100.Interface{bridge, terse}, "10.0.0.2"},
		"of another name":     {[]*types100.Interface{bridge, other}, "10.0.0.2"},
	} {
		got := addresses(&types100.Result{Interfaces: c.interfaces,
			IPs: []*types100.IPConfig{at(0, "10.0.0.1"), at(1, "10.0.0.2")}}, "eth0")
		if !slices.Equal(got, []netip.Addr{netip.MustParseAddr(c.want)}) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
