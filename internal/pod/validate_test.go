package pod

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// TestWordsOfPodFiles refuses what would be a line or a word of its own in a pod's /etc/hostname and /etc/resolv.conf,
// and takes what clients send.
func TestWordsOfPodFiles(t *testing.T) {
	for _, bad := range []string{"a\n10.0.0.1 b", "a\x00", "a b", "a\tb", "\r", "a\u0085b", "a\u2028b", "a\x7f", " "} {
		for field, edit := range map[string]func(*runtimeapi.PodSandboxConfig){
			"hostname": func(c *runtimeapi.PodSandboxConfig) { c.Hostname = bad },
			"dns_config.servers": func(c *runtimeapi.PodSandboxConfig) {
				c.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10", bad}}
			},
			"dns_config.searches": func(c *runtimeapi.PodSandboxConfig) {
				c.DnsConfig = &runtimeapi.DNSConfig{Searches: []string{bad}}
			},
			"dns_config.options": func(c *runtimeapi.PodSandboxConfig) {
				c.DnsConfig = &runtimeapi.DNSConfig{Options: []string{bad}}
			},
		} {
			cfg := podConfig("a")
			edit(cfg)
			if err := validatePod(cfg); !fail.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), field+": ") {
				t.Errorf("%s %q: %v", field, bad, err)
			}
		}
	}
	cfg := podConfig("a")
	cfg.Hostname = "Web_0.example-site"
	cfg.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10", "fe80::1%eth0"},
		Searches: []string{".", "default.svc.cluster.local"}, Options: []string{"ndots:5", "edns0", ""}}
	if err := validatePod(cfg); err != nil {
		t.Errorf("what clients send: %v", err)
	}
}
