package remote

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// FuzzHostsToml takes any hosts.toml: nothing panics, and the credentials of the registry that the reference names are
// shown to no other host, whatever its answers are.
func FuzzHostsToml(f *testing.F) {
	for _, text := range []string{
		"", "server = \"https://registry.test\"\n", "server = \"http://other.test\"\n[host.\"https://mirror.test\"]\n",
		"[host.\"https://mirror.test/path\"]\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\nskip_verify " +
			"= true\n",
		"[host.\"http://registry.test.mirror.test\"]\n[host.\"http://registry.test.mirror.test\".header]\nX-A = \"1\"\nX-B " +
			"= [\"1\", \"2\"]\n",
		"server = \"https://joe:pw@registry.test\"\nca = [\"a\"]\nclient = [[\"a\", \"b\"]]\ndial_timeout = \"1s\"\n",
		"[host.\"https://REGISTRY.TEST:443\"]\n[host.\"registry.test:5000\"]\n[host.\"https://registry.test@evil.test\"]\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		_ = os.Mkdir(filepath.Join(dir, "registry.test"), 0o700)
		if err := os.WriteFile(filepath.Join(dir, "registry.test", "hosts.toml"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		spy := &spy{}
		c := New(Options{ConfigDir: dir, Connections: 4, Buffer: 8 << 20, clock: quick(), Stall: forever,
			wrap: func(http.RoundTripper) http.RoundTripper { return spy }})
		repo, err := c.Repository(t.Context(), named(t, "registry.test/app:v1"), joe)
		if err != nil {
			if _, ok := err.(*Error); !ok {
				t.Errorf("%#v", err)
			}
			return
		}
		defer repo.Close()
		_, err = repo.Resolve(context.Background())
		if err == nil || strings.Contains(err.Error(), joe.Password) {
			t.Errorf("resolve: %v", err)
		}
		for _, host := range spy.told {
			if canonicalHost(host) != "registry.test" {
				t.Errorf("%q was shown the credentials", host)
			}
		}
	})
}

// spy is a network in which every host wants credentials, in ways that change with the path.
type spy struct {
	mu   sync.Mutex // guards what follows
	n    int
	told []string // hosts that were shown credentials
}

func (s *spy) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if auth := r.Header.Get("Authorization"); strings.Contains(auth,
		base64.StdEncoding.EncodeToString([]byte("joe:s3cret"))) {
		s.told = append(s.told, r.URL.Host)
	}
	s.n++
	h := http.Header{}
	code := http.StatusUnauthorized
	switch s.n % 3 {
	case 0:
		h.Set("Location", "https://elsewhere.test/"+r.URL.Path)
		code = http.StatusTemporaryRedirect
	default:
		h.Set("WWW-Authenticate", "Basic realm=x")
	}
	return &http.Response{StatusCode: code, Header: h, Body: io.NopCloser(strings.NewReader("")), Request: r,
		ProtoMajor: 1, ProtoMinor: 1}, nil
}
