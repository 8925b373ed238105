package registry

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"berth/test/fixture"
)

// TestHostsCapabilities has mirrors that may do only a part.
func TestHostsCapabilities(t *testing.T) {
	r := open(t)
	resolves, pulls, does := r.proxy(), r.proxy(), r.proxy()
	host := r.unique() + ".test"
	r.hosts(host, fmt.Sprintf("server = %q\n[host.%q]\n  capabilities = [\"resolve\"]\n[host.%q]\n  capabilities = "+
		"[\"pull\"]\n",
		does.URL(), resolves.URL(), pulls.URL()))
	a := r.app(8 * kib).push()
	a.works(a.at(host))
	if asked := resolves.Requests(fixture.PartBlob); len(asked) > 0 {
		r.Errorf("who may only resolve was asked %v", asked)
	}
	if asked := does.Requests(fixture.PartManifest); len(asked) == 0 || asked[0].Name != "v1" {
		r.Errorf("who may do all was asked %v", asked)
	}
	for _, asked := range pulls.Requests(fixture.PartManifest) {
		if asked.Name == "v1" {
			r.Errorf("who may not resolve was asked %v", asked)
		}
	}
	if asked := pulls.Requests(fixture.PartBlob); len(asked) == 0 {
		r.Error("who may pull was not asked for a blob")
	}
}

// TestHostsNamespace checks what a mirror is told of the host that it stands for.
func TestHostsNamespace(t *testing.T) {
	r := open(t)
	p, origin := r.proxy(), r.proxy()
	a := r.app(8 * kib).push()
	host := r.mirrored(p, origin)
	a.works(a.at(host))
	for _, asked := range append(p.Requests(fixture.PartManifest), p.Requests(fixture.PartBlob)...) {
		if got := asked.Query.Get("ns"); got != host {
			r.Errorf("%v: ns is %q", asked, got)
		}
	}
}

// TestHostsOverridePath has the API below another path.
func TestHostsOverridePath(t *testing.T) {
	r := open(t)
	p := r.proxy(fixture.ProxyOptions{Prefix: "/cache/docker"})
	host := r.unique() + ".test"
	r.hosts(host, "server = \"http://127.0.0.1:1\"\n"+mirror(p.URL()+"/cache/docker", "override_path = true"))
	a := r.app(8 * kib).push()
	a.works(a.at(host))
}

// TestHostsTLS reaches hosts whose certificates only hosts.toml makes good.
func TestHostsTLS(t *testing.T) {
	r := open(t)
	clientCA, cert, key, err := fixture.Certificate("client", net.IPv4(127, 0, 0, 1))
	r.ok(err)
	pair := []file{{"client.cert", cert}, {"client.key", key}, {"both.pem", append(append([]byte{}, cert...), key...)}}
	for name, c := range map[string]struct {
		lines  []string
		client bool // the host wants a certificate
		fails  bool
	}{
		"none":            {nil, false, true},
		"ca":              {[]string{`ca = "ca.pem"`}, false, false},
		"ca-list":         {[]string{`ca = ["other.pem", "ca.pem"]`}, false, false},
		"other-ca":        {[]string{`ca = "other.pem"`}, false, true},
		"skip-verify":     {[]string{`skip_verify = true`}, false, false},
		"no-client":       {[]string{`ca = "ca.pem"`}, true, true},
		"client-one-file": {[]string{`ca = "ca.pem"`, `client = "both.pem"`}, true, false},
		"client-list":     {[]string{`ca = "ca.pem"`, `client = ["both.pem"]`}, true, false},
		"client-pairs":    {[]string{`ca = "ca.pem"`, `client = [["client.cert", "client.key"]]`}, true, false},
	} {
		r.beside(name, func(r rig) {
			o := fixture.ProxyOptions{TLS: true}
			if c.client {
				o.ClientCA = clientCA
			}
			p := r.proxy(o)
			host := r.unique() + ".test"
			files := append([]file{{"ca.pem", p.CA}, {"other.pem", clientCA}}, pair...)
			r.hosts(host, "server = \"http://127.0.0.1:1\"\n"+mirror(p.URL(), c.lines...), files...)
			a := r.app(8 * kib).push()
			if c.fails {
				r.refused(r.pull(a.at(host), nil), codes.Unavailable, p.Addr)
				return
			}
			a.works(a.at(host))
		})
	}
}

// TestHostsDockerFiles has no hosts.toml, but certificates named as Docker names them.
func TestHostsDockerFiles(t *testing.T) {
	r := open(t)
	clientCA, cert, key, err := fixture.Certificate("client", net.IPv4(127, 0, 0, 1))
	r.ok(err)
	p := r.proxy(fixture.ProxyOptions{TLS: true, ClientCA: clientCA})
	r.hosts(p.Addr, "", file{"ca.crt", p.CA}, file{"me.cert", cert}, file{"me.key", key})
	r.ok(os.Remove(filepath.Join(r.hostDir(p.Addr), "hosts.toml")))
	a := r.app(8 * kib).push()
	a.works(a.at(p.Addr))
}

// TestHostsHeaders sends a mirror what it wants to hear, and tells nobody else.
func TestHostsHeaders(t *testing.T) {
	r := open(t)
	first, second := r.proxy(), r.proxy()
	first.On(fixture.Fault{Part: fixture.PartBlob, Status: 404})
	host := r.unique() + ".test"
	r.hosts(host,
		fmt.Sprintf("server = %q\n", second.URL())+mirror(first.URL(), fmt.Sprintf("[host.%q.header]", first.URL()),
			`  X-One = "1"`, `  X-Many = ["a", "b"]`))
	a := r.app(8 * kib).push()
	a.works(a.at(host))
	for _, asked := range first.Requests("") {
		if asked.Header.Get("X-One") != "1" || strings.Join(asked.Header.Values("X-Many"), ",") != "a,b" {
			r.Errorf("%v: headers %v", asked, asked.Header)
		}
	}
	r.hidden(second, "X-One")
	r.hidden(second, "X-Many")
}

// TestHostsDialTimeout has a mirror that never picks up.
func TestHostsDialTimeout(t *testing.T) {
	r := open(t)
	hole := r.blackHole("127.9.9.9")
	p := r.proxy()
	host := r.unique() + ".test"
	r.hosts(host, fmt.Sprintf("server = %q\n", p.URL())+mirror("http://"+hole, `dial_timeout = "200ms"`))
	a := r.app(8 * kib).push()
	a.works(a.at(host))
}

// TestLostMirrorOverPulls has a mirror that never picks up: one pull waits for it, the next ones do not even try.
func TestLostMirrorOverPulls(t *testing.T) {
	r := open(t)
	const address = "127.9.9.8"
	hole := r.blackHole(address)
	p := r.proxy()
	host := r.unique() + ".test"
	r.hosts(host, fmt.Sprintf("server = %q\n", p.URL())+mirror("http://"+hole, `dial_timeout = "200ms"`))
	var counted []int
	for _, tag := range []string{"a", "b", "c"} {
		a := r.appNamed("t/"+r.unique()+":"+tag, 8*kib).push()
		a.works(a.at(host))
		counted = append(counted, r.swallowed(address))
	}
	if counted[0] == 0 || counted[1] != counted[0] || counted[2] != counted[0] {
		r.Errorf("packets to the mirror, after each pull: %v", counted)
	}
}

// blackHole is an address in the node's space that takes what is sent to it, and never answers.
func (r rig) blackHole(address string) string {
	r.Helper()
	rule := func(what string) error {
		return r.n.Space.Run(exec.Command("iptables", "-w", what, "INPUT", "-d", address, "-j", "DROP"))
	}
	r.ok(rule("-I"))
	r.Cleanup(func() { r.ok(rule("-D")) })
	return address + ":80"
}

// swallowed is how many packets a black hole took so far.
func (r rig) swallowed(address string) int {
	r.Helper()
	list := exec.Command("iptables", "-w", "-L", "INPUT", "-v", "-n", "-x")
	var out strings.Builder
	list.Stdout = &out
	r.ok(r.n.Space.Run(list))
	for line := range strings.Lines(out.String()) {
		if fields := strings.Fields(line); slices.Contains(fields, address) {
			n, err := strconv.Atoi(fields[0])
			r.ok(err)
			return n
		}
	}
	r.Fatalf("no rule for %s in %s", address, out.String())
	return 0
}

// TestHostsServer asks the server that hosts.toml names, not the host of the reference.
func TestHostsServer(t *testing.T) {
	r := open(t)
	named, real := r.proxy(), r.proxy()
	r.hosts(named.Addr, fmt.Sprintf("server = %q\n", real.URL()))
	a := r.app(8 * kib).push()
	a.works(a.at(named.Addr))
	if asked := named.Requests(""); len(asked) > 0 {
		r.Errorf("the host was asked %v", asked)
	}
}

// TestHostsAreReadAnew changes hosts.toml under a daemon, breaks it, and mends it.
func TestHostsAreReadAnew(t *testing.T) {
	r := open(t)
	one, two := r.proxy(), r.proxy()
	host := r.unique() + ".test"
	a, b := r.appNamed("t/"+r.unique()+":a", 8*kib).push(), r.appNamed("t/"+r.unique()+":b", 8*kib).push()
	r.hosts(host, fmt.Sprintf("server = %q\n", one.URL()))
	a.works(a.at(host))
	r.hosts(host, "server = [broken\n")
	r.refused(r.pull(b.at(host), nil), codes.Unknown, filepath.Join(r.hostDir(host), "hosts.toml"))
	if asked := two.Requests(""); len(asked) > 0 {
		r.Errorf("asked %v too early", asked)
	}
	r.hosts(host, fmt.Sprintf("server = %q\n", two.URL()))
	r.forget(one)
	b.works(b.at(host))
	if asked := one.Requests(""); len(asked) > 0 {
		r.Errorf("asked %v too late", asked)
	}
}

// TestHostsDefault has a hosts.toml for whatever has none of its own.
func TestHostsDefault(t *testing.T) {
	r := openOwn(t, impatient)
	p, own := r.proxy(), r.proxy()
	r.hosts("_default", fmt.Sprintf("server = %q\n", p.URL()))
	r.hosts("own.test", fmt.Sprintf("server = %q\n", own.URL()))
	a, b := r.appNamed("t/"+r.unique()+":a", 8*kib).push(), r.appNamed("t/"+r.unique()+":b", 8*kib).push()
	a.works(a.at("whoever.test"))
	if asked := own.Requests(""); len(asked) > 0 {
		r.Errorf("asked %v", asked)
	}
	r.forget(p)
	b.works(b.at("own.test"))
	if asked := p.Requests(""); len(asked) > 0 {
		r.Errorf("the default was asked %v for a host that has its own", asked)
	}
}

// TestIPv6 pulls from a registry that a reference names by its address.
func TestIPv6(t *testing.T) {
	r := open(t)
	l, err := r.n.Space.Listen("tcp", "[::1]:0")
	if err != nil {
		r.Skipf("this machine has no IPv6: %v", err)
	}
	r.ok(l.Close())
	p := r.proxy(fixture.ProxyOptions{Address: "[::1]:0"})
	a := r.app(8 * kib).push()
	a.works(a.at(p.Addr))
	secure := r.proxy(fixture.ProxyOptions{Address: "[::1]:0", TLS: true})
	r.hosts(secure.Addr, mirror(secure.URL(), `ca = "ca.pem"`), file{"ca.pem", secure.CA})
	r.remove(a.at(p.Addr))
	a.works(a.at(secure.Addr))
}
