package network

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"berth/internal/annotation"
)

// TestUnmetCapabilities has a pod ask for all that plugins can be asked for, in networks that can do some of it. The
// log tells of each that the pod does not get.
func TestUnmetCapabilities(t *testing.T) {
	asks := map[string]string{
		annotation.KeyIngress: "1M", annotation.KeyIPs: "10.9.8.7", annotation.KeyMAC: "02:00:00:00:00:01",
		annotation.KeyInfiniband: "x",
	}
	all := []string{"bandwidth", "infinibandGUID", "ips", "mac", "portMappings"}
	for _, can := range [][]string{nil, {"ips"}, {"bandwidth", "portMappings"}, all} {
		t.Run(strings.Join(can, " "), func(t *testing.T) {
			text := &logged{}
			_, change := script(t, "spy", spy)
			declared := ""
			for _, name := range can {
				declared += `"` + name + `": true, `
			}
			h := newHost(t, `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "spy", "capabilities": {`+declared+
				`"none": false}}]}`, change, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(text, nil)) })
			if got := h.Status().Capabilities; !slices.Equal(got, can) {
				t.Errorf("capabilities %v, want %v", got, can)
			}
			for ports, asked := range map[Port]bool{{HostPort: 80, ContainerPort: 80}: true, {ContainerPort: 80}: false} {
				p := h.pod(ports)
				p.DNS.Servers, p.CgroupPath = []string{"10.0.0.10"}, "/kubepods/x" // which nobody asks for by itself
				if asked {
					p.Annotations = asks
				}
				h.attach(p)
				h.detach(p)
				var told []string
				for line := range strings.Lines(text.String()) {
					if strings.Contains(line, p.ID) && strings.Contains(line, "no plugin of its network declares") {
						_, name, _ := strings.Cut(line, "capability=")
						told = append(told, strings.Fields(name)[0])
					}
				}
				var want []string
				for _, name := range all {
					if asked && !slices.Contains(can, name) {
						want = append(want, name)
					}
				}
				if !slices.Equal(told, want) {
					t.Errorf("where plugins can %v the log tells of %v, want %v: %s", can, told, want, text)
				}
			}
		})
	}
}

// TestUnmetPortsAreClipped has a pod ask for thousands of host ports in a network without the capability, which may map
// them without it.
func TestUnmetPortsAreClipped(t *testing.T) {
	text := &logged{}
	_, change := script(t, "spy", spy)
	h := newHost(t, `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "spy"}]}`, change,
		func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(text, nil)) })
	var ports []Port
	for i := range int32(5000) {
		ports = append(ports, Port{HostPort: 10000 + i, ContainerPort: i + 1})
	}
	p := h.pod(ports...)
	h.attach(p)
	h.detach(p)
	said := text.String()
	if len(said) > 10<<10 || !strings.Contains(said, "10000") || !strings.Contains(said, "unless the network does that") {
		t.Errorf("%d bytes: %.1000s", len(said), said)
	}
}
