package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"berth/test/fixture"
)

// hosts writes the hosts.toml of a host, and other files beside it. It is gone before the port is another test's.
func (r rig) hosts(host, text string, files ...file) {
	r.Helper()
	dir := r.hostDir(host)
	r.ok(os.MkdirAll(dir, 0o755))
	r.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, f := range append(files, file{"hosts.toml", []byte(text)}) {
		r.ok(os.WriteFile(filepath.Join(dir, f.name), f.body, 0o600))
	}
}

type file struct {
	name string
	body []byte
}

func (r rig) hostDir(host string) string { return filepath.Join(r.n.Certs, host) }

// mirror is a part of a hosts.toml: a host that is asked, with more lines for it.
func mirror(url string, lines ...string) string {
	return fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n  %s\n", url, strings.Join(lines, "\n  "))
}

// mirrored makes a host that exists nowhere but in its mirrors, asked in this order. The last stands for the host
// itself.
func (r rig) mirrored(proxies ...*fixture.Proxy) (host string) {
	r.Helper()
	urls := make([]string, len(proxies))
	for i, p := range proxies {
		urls[i] = p.URL()
	}
	return r.mirroredAt(urls...)
}

func (r rig) mirroredAt(urls ...string) (host string) {
	r.Helper()
	host = r.unique() + ".test"
	text := fmt.Sprintf("server = %q\n", urls[len(urls)-1])
	for _, url := range urls[:len(urls)-1] {
		text += mirror(url)
	}
	r.hosts(host, text)
	return host
}

// shown are the values of a header that a proxy was shown.
func shown(p *fixture.Proxy, key string) (values []string) {
	for _, r := range p.Requests("") {
		values = append(values, r.Header.Values(key)...)
	}
	return values
}

// hidden checks that a proxy was asked, and was not shown the header.
func (r rig) hidden(p *fixture.Proxy, key string) {
	r.Helper()
	if len(p.Requests("")) == 0 {
		r.Errorf("%s was never asked", p.Addr)
	}
	if got := shown(p, key); len(got) > 0 {
		r.Errorf("%s was shown %s %q", p.Addr, key, got)
	}
}
