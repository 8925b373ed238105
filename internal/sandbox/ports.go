package sandbox

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SamePort reports whether no two pods can have these ports of the machine.
func SamePort(a, b *runtimeapi.PortMapping) bool {
	return a.GetHostPort() == b.GetHostPort() && a.GetProtocol() == b.GetProtocol() &&
		(everyAddress(a) || everyAddress(b) || a.GetHostIp() == b.GetHostIp())
}

func everyAddress(p *runtimeapi.PortMapping) bool {
	ip, err := netip.ParseAddr(p.GetHostIp())
	return err != nil || ip.IsUnspecified()
}

// PortText is a port of the machine as people write it.
func PortText(p *runtimeapi.PortMapping) string {
	text := fmt.Sprintf("%d/%s", p.GetHostPort(), strings.ToLower(p.GetProtocol().String()))
	if p.GetHostIp() != "" {
		text = net.JoinHostPort(p.GetHostIp(), text)
	}
	return text
}
