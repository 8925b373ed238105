package remote

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	toml "github.com/pelletier/go-toml/v2"

	"berth/internal/limit"
)

// httpRedirectsKey is the key of a hosts.toml that has redirects from https to http followed.
const httpRedirectsKey = "allow_http_redirects"

// ownKeys are those of a hosts.toml that only Berth has. containerd passes over keys that it does not know, so that
// both can use one file.
type ownKeys struct {
	HostKeys
	Hosts map[string]HostKeys `toml:"host"`
}

// HostKeys are the keys of one host, or those of the server at the top of the file.
type HostKeys struct {
	HTTPRedirects bool   `toml:"allow_http_redirects"`
	FirstByte     string `toml:"first_byte_timeout"`

	firstByte time.Duration
}

// readOwnKeys reads the hosts.toml of home and looks at its certificates, before the library does, which would wait for
// the writer of a FIFO.
func readOwnKeys(home string, find func(string) (string, error)) (ownKeys, error) {
	var own ownKeys
	if find == nil {
		return own, nil
	}
	dir, err := find(home)
	if errdefs.IsNotFound(err) {
		return own, nil
	}
	if err != nil {
		return own, err
	}
	text, err := limit.ReadFile(filepath.Join(dir, "hosts.toml"), limit.ConfigFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return own, err
	}
	if err := toml.Unmarshal(text, &own); err != nil {
		return own, err
	}
	if err := checkCertificates(dir, text); err != nil {
		return own, err
	}
	if err := own.check(); err != nil {
		return own, err
	}
	for address, keys := range own.Hosts {
		if err := keys.check(); err != nil {
			return own, fmt.Errorf("host %q: %w", address, err)
		}
		own.Hosts[address] = keys
	}
	return own, nil
}

func (k *HostKeys) check() error {
	if k.FirstByte == "" {
		return nil
	}
	d, err := time.ParseDuration(k.FirstByte)
	if err != nil || d <= 0 {
		return fmt.Errorf("first_byte_timeout is %q, and must be a time such as 10m", k.FirstByte)
	}
	k.firstByte = d
	return nil
}

// apply gives a host its keys; the server has those at the top of the file.
func (o *ownKeys) apply(h *host, server bool) {
	keys := o.HostKeys
	if !server {
		keys = HostKeys{}
		for address, of := range o.Hosts {
			if names(address, h.base) {
				keys = of
			}
		}
	}
	h.httpRedirects = keys.HTTPRedirects
	if keys.firstByte > 0 {
		h.firstByte = keys.firstByte
	}
}

// names reports whether the address of a host's table is that of base, to which the library may have added the scheme
// and the root of the API.
func names(address string, base *url.URL) bool {
	if !strings.HasPrefix(address, "http") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host != base.Host {
		return false
	}
	if u.Path != "" {
		u.Path = path.Clean(u.Path)
	}
	return u.Path == base.Path || u.Path+"/v2" == base.Path
}
