package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/fixture"
)

// TestMigratedRegistries pulls by what inline mirrors of containerd, and a registries.yaml of k3s, have become: over
// TLS with an authority of one's own, from a registry that wants to know who comes, with nobody's credentials in the
// pull.
func TestMigratedRegistries(t *testing.T) {
	r := open(t)
	p := r.proxy(fixture.ProxyOptions{
		Target: r.ownRegistry(fixture.RegistryOptions{Auth: true, TLS: true}), TLS: true,
	})
	a := r.app(8 * kib)
	a.push(p.Target())
	dir := r.TempDir()
	write := func(name, text string) (path string) {
		path = filepath.Join(dir, name)
		r.ok(os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	ca, empty := write("ca.pem", string(p.CA)), write("empty", "")
	host := r.unique() + ".test"
	inline := fmt.Sprintf(`version = 2
[plugins."io.containerd.grpc.v1.cri".registry.mirrors.%[1]q]
endpoint = ["https://%[2]s"]
[plugins."io.containerd.grpc.v1.cri".registry.configs.%[2]q.tls]
ca_file = %[3]q
[plugins."io.containerd.grpc.v1.cri".registry.configs.%[2]q.auth]
username = %[4]q
password = %[5]q
`, host, p.Addr, ca, fixture.User, fixture.Password)
	k3s := fmt.Sprintf(`mirrors: {%[1]q: {endpoint: ["https://%[2]s"]}}
configs: {%[2]q: {tls: {ca_file: %[3]q}, auth: {username: %[4]q, password: %[5]q}}}
`, host, p.Addr, ca, fixture.User, fixture.Password)
	for _, files := range [][]string{{write("config.toml", inline), empty}, {empty, write("registries.yaml", k3s)}} {
		into := r.TempDir()
		out, code := r.berth(nil, "migrate", "containerd", "--only=settings", "--into", into, "--config", files[0],
			"--registries", files[1])
		if code != 0 || strings.Contains(out, fixture.Password) {
			r.Fatalf("code %d: %s", code, out)
		}
		text, err := os.ReadFile(filepath.Join(into, "certs.d", host, "hosts.toml"))
		r.ok(err)
		r.hosts(host, string(text))
		r.ok(r.pull(a.at(host), nil))
		r.remove(a.at(host))
	}
}
