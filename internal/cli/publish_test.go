package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

// exposes has the image of runnable say at which ports it listens.
func exposes(t *testing.T, d *daemon, ports ...string) {
	t.Helper()
	set := map[string]struct{}{}
	for _, p := range ports {
		set[p] = struct{}{}
	}
	config, err := json.Marshal(map[string]any{"config": map[string]any{"ExposedPorts": set}})
	if err != nil {
		t.Fatal(err)
	}
	d.details = []admin.ImageDetail{{ID: d.images[0].Id, Config: config}}
}

// TestPublishWithoutAPort asks for ports of the machine without saying which, one by one and for all that an image
// exposes.
func TestPublishWithoutAPort(t *testing.T) {
	for flags, want := range map[string]string{
		"-p 80":                        "[80/TCP]",
		"-p 127.0.0.1::80":             "[127.0.0.1 80/TCP]",
		"-p :53/udp":                   "[53/UDP]",
		"-P":                           "[53/UDP 80/TCP 443/TCP]",
		"-P -p 80":                     "[80/TCP 53/UDP 443/TCP]",
		"-p 80 -p 80 -p 127.0.0.1::80": "[80/TCP 80/TCP 127.0.0.1 80/TCP]",
	} {
		d, logs := runnable(t)
		exposes(t, d, "443", "80/tcp", "53/udp")
		args := append([]string{"run", "-d", "--log-dir", logs, "--name", "web"}, strings.Fields(flags)...)
		if _, errs, code := d.berth(t, append(args, "img:1")...); code != 0 {
			t.Errorf("%s: %s", flags, errs)
			continue
		}
		var got []string
		var chosen []int32
		pod, _ := d.onlyRequest(t)
		for _, p := range pod.PortMappings {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %d/%s", p.HostIp, p.ContainerPort, p.Protocol)))
			if p.HostPort == 0 || slices.Contains(chosen, p.HostPort) {
				t.Errorf("%s: port %d of the machine, after %v", flags, p.HostPort, chosen)
			}
			chosen = append(chosen, p.HostPort)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", flags, got, want)
		}
		if out, _, _ := d.berth(t, "port", "web"); strings.Count(out, " -> ") != len(got) {
			t.Errorf("%s: berth port tells %q", flags, out)
		}
	}
}

// TestPublishWhereTheNetworkTakesNoPorts publishes a port in a network none of whose plugins forwards one.
func TestPublishWhereTheNetworkTakesNoPorts(t *testing.T) {
	const none = `{"name": "pods", "file": "/etc/cni/net.d/1.conflist", "plugins": ["bridge"], "capabilities": ["dns"]}`
	for network, warned := range map[string]bool{
		none: true, strings.Replace(none, "dns", "portMappings", 1): false,
		"":             false, // of a daemon of an earlier release
		`{"name": ""}`: false, // making the pod says what is wrong
	} {
		for _, args := range []string{"-p 80", "-P", ""} {
			d, logs := runnable(t)
			exposes(t, d, "80")
			d.network = network
			line := append([]string{"run", "-d", "--log-dir", logs}, strings.Fields(args)...)
			out, errs, code := d.berth(t, append(line, "img:1")...)
			told := strings.Contains(errs, "no plugin of the network pods (/etc/cni/net.d/1.conflist) forwards ports")
			if code != 0 || out == "" || told != (warned && args != "") {
				t.Errorf("%s, %q: code %d, %q", network, args, code, errs)
			}
		}
	}
}

// TestPublishedPortOfAnother has the kernel offer ports that lead to pods already, at which nobody listens.
func TestPublishedPortOfAnother(t *testing.T) {
	var taken []takenPort
	for port := range int32(1 << 16) {
		taken = append(taken, takenPort{PortMapping: &runtimeapi.PortMapping{HostPort: port, HostIp: "127.0.0.1"}})
	}
	m := &runtimeapi.PortMapping{ContainerPort: 80}
	if err := choosePort(m, taken); err == nil || !strings.Contains(err.Error(), "-p HOSTPORT:80 says which") {
		t.Errorf("port %d, %v", m.HostPort, err)
	}
	m.Protocol = runtimeapi.Protocol_UDP // of which none is taken
	if err := choosePort(m, taken); err != nil || m.HostPort == 0 {
		t.Errorf("port %d, %v", m.HostPort, err)
	}
}

// TestHostileExposedPorts is about images that expose what no one can publish.
func TestHostileExposedPorts(t *testing.T) {
	many := make([]string, mostExposed+1)
	for i := range many {
		many[i] = fmt.Sprint(i + 1)
	}
	for name, c := range map[string]struct {
		ports []string
		want  string
	}{
		"no number":   {[]string{"web"}, `"web", which is none`},
		"too large":   {[]string{"70000/tcp"}, `"70000/tcp", which is none`},
		"a protocol":  {[]string{"80/x"}, "which is none"},
		"an address":  {[]string{"0.0.0.0:1:80"}, "which is none"},
		"of the host": {[]string{"22:80"}, "which is none"},
		"many":        {many, "has 1001 ports"},
	} {
		d, logs := runnable(t)
		exposes(t, d, c.ports...)
		_, errs, code := d.berth(t, "run", "-d", "-P", "--log-dir", logs, "img:1")
		if code != ownFailure || !strings.Contains(errs, c.want) || len(d.configs) != 0 {
			t.Errorf("%s: code %d, %q", name, code, errs)
		}
	}
}
