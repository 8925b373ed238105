package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/test/timeouts"
)

// refused pulls, wants the kind and the words, and that nothing is left.
func refused(t *testing.T, s *Store, req PullRequest, kind error, words string) {
	t.Helper()
	had := layersOnDisk(t, s)
	_, err := s.Pull(t.Context(), req)
	if err == nil || kindOf(err) != kind || !strings.Contains(err.Error(), words) {
		t.Errorf("pull %s: kind %v, %v; want kind %v with %q", req.Reference, kindOf(err), err, kind, words)
	}
	if kind == crierrors.ErrRegistryUnavailable && !strings.HasPrefix(status.Convert(fail.Status(err)).Message(),
		"RegistryUnavailable: ") {
		t.Errorf("the kubelet does not know %q", err)
	}
	if n := layersOnDisk(t, s); n > had {
		t.Errorf("%d layers stayed", n-had)
	}
	sound(t, s)
}

// swept wants a sweep to take all layers of a pull that failed, once those that were on their way have noticed its end.
func swept(t *testing.T, s *Store) {
	t.Helper()
	for end := time.Now().Add(timeouts.For(time.Minute)); ; time.Sleep(10 * time.Millisecond) {
		if err := s.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		n := layersOnDisk(t, s)
		if n == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d layers stay after a sweep", n)
		}
	}
}

func TestBadReferences(t *testing.T) {
	s := open(t, t.TempDir())
	for _, ref := range []string{"", "UPPER", "a b", "host:port/x", "x:", "x@sha256:12", strings.Repeat("a", 64), "../etc",
		"a__b.c/d", "x:" + strings.Repeat("t", 200), "\x00"} {
		refused(t, s, PullRequest{Reference: ref}, errdefs.ErrInvalidArgument, "reference")
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	refused(t, s, PullRequest{Reference: "127.0.0.1:1/x"}, crierrors.ErrRegistryUnavailable, "connection refused")
	host := startRegistry(t, "")
	refused(t, s, PullRequest{Reference: host + "/none:v1"}, errdefs.ErrNotFound, "none:v1")
	p := startProxy(t, host, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(503) })
	refused(t, s, PullRequest{Reference: p.host + "/x"}, crierrors.ErrRegistryUnavailable, "503")
	p = startProxy(t, host, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(403) })
	refused(t, s, PullRequest{Reference: p.host + "/x"}, errdefs.ErrPermissionDenied, "403")
}

func TestBasicAuth(t *testing.T) {
	t.Parallel()
	file, err := exec.Command("htpasswd", "-nbB", "joe", "s3cret").Output()
	if err != nil {
		t.Skip("htpasswd is not installed")
	}
	path := filepath.Join(t.TempDir(), "htpasswd")
	if err := os.WriteFile(path, bytes.TrimSpace(file), 0o600); err != nil {
		t.Fatal(err)
	}
	host := startRegistry(t, "auth:\n  htpasswd:\n    realm: test\n    path: "+path+"\n")
	push(t, host+"/private:v1", imageOf(t, gz(t, fileEntry("a", "1"))),
		remote.WithAuth(&authn.Basic{Username: "joe", Password: "s3cret"}))
	s := open(t, t.TempDir())
	ref := host + "/private:v1"
	refused(t, s, PullRequest{Reference: ref}, errdefs.ErrUnauthenticated, "authoriz")
	refused(t, s, PullRequest{Reference: ref, Auth: &Auth{Username: "joe", Password: "wrong"}},
		errdefs.ErrUnauthenticated, "")
	refused(t, s, PullRequest{Reference: ref,
		Auth: &Auth{Username: "joe", Password: "s3cret", ServerAddress: "elsewhere.example"}}, errdefs.ErrUnauthenticated, "")
	refused(t, s, PullRequest{Reference: ref, Auth: &Auth{Auth: "!!"}}, errdefs.ErrInvalidArgument, "base64")
	good := []*Auth{
		{Username: "joe", Password: "s3cret"},
		{Auth: base64.StdEncoding.EncodeToString([]byte("joe:s3cret"))},
		{Username: "joe", Password: "s3cret", ServerAddress: "http://" + host + "/v2/"},
	}
	for _, a := range good {
		if _, err := s.Pull(t.Context(), PullRequest{Reference: ref, Auth: a}); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
	}
	// the image is here now: that opens it to nobody
	refused(t, s, PullRequest{Reference: ref}, errdefs.ErrUnauthenticated, "")
}

func fileEntry(name, body string) entry { return file(name, body) }

// TestTokenAuth puts a registry behind bearer tokens of a token server of our own, and counts who got which secret.
func TestTokenAuth(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/team/app:v1", imageOf(t, gz(t, file("a", "1"))))
	var asked []string
	token := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		user, secret, _ := r.BasicAuth()
		if r.Method == http.MethodPost {
			user, secret = r.Form.Get("username"), r.Form.Get("password")
			if r.Form.Get("grant_type") == "refresh_token" {
				user, secret = "identity", r.Form.Get("refresh_token")
			}
		}
		asked = append(asked, r.Form.Get("scope"))
		if user+":"+secret != "joe:s3cret" && user+":"+secret != "identity:long-lived" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"token": "good", "access_token": "good", "expires_in": 300})
	}))
	t.Cleanup(token.Close)
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Authorization") != "Bearer good" {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+token.URL+`",service="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		r.Header.Del("Authorization")
		next.ServeHTTP(w, r)
	})
	s := open(t, t.TempDir())
	ref := p.host + "/team/app:v1"
	refused(t, s, PullRequest{Reference: ref}, errdefs.ErrUnauthenticated, "")
	refused(t, s, PullRequest{Reference: ref, Auth: &Auth{Username: "joe", Password: "no"}}, errdefs.ErrUnauthenticated,
		"")
	refused(t, s, PullRequest{Reference: ref, Auth: &Auth{IdentityToken: "old"}}, errdefs.ErrUnauthenticated, "")
	refused(t, s, PullRequest{Reference: ref, Auth: &Auth{RegistryToken: "bad"}}, errdefs.ErrUnauthenticated,
		"registry token")
	for _, a := range []*Auth{{Username: "joe", Password: "s3cret"}, {IdentityToken: "long-lived"},
		{RegistryToken: "good"}} {
		if _, err := s.Pull(t.Context(), PullRequest{Reference: ref, Auth: a}); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
	}
	if !strings.Contains(strings.Join(asked, " "), "repository:team/app:pull") {
		t.Errorf("scopes asked for: %v", asked)
	}
}

// TestHostsToml goes through a mirror that is down, one that has nothing and one that has the image, and sees that none
// of them is given the credentials of the registry itself.
func TestHostsToml(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/lib/app:v1", imageOf(t, gz(t, file("a", "1"))))
	empty := startProxy(t, startRegistry(t, ""), nil)
	mirror := startProxy(t, host, nil)
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		_ = os.MkdirAll(filepath.Join(dir, name), 0o700)
		if err := os.WriteFile(filepath.Join(dir, name, "hosts.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("registry.example", fmt.Sprintf("server = \"http://127.0.0.1:1\"\n[host.\"http://127.0.0.1:1\"]\n"+
		"[host.\"http://%s\"]\n[host.\"http://%s\"]\n", empty.host, mirror.host))
	write("_default", fmt.Sprintf("[host.\"http://%s\"]\n", mirror.host))
	write("broken.example", "server = [")
	s := open(t, t.TempDir(), func(c *Config) { c.RegistryConfigDir = dir })
	auth := &Auth{Username: "joe", Password: "s3cret"}
	for _, ref := range []string{"registry.example/lib/app:v1", "other.example/lib/app:v1"} {
		img, err := s.Pull(t.Context(), PullRequest{Reference: ref, Auth: auth})
		if err != nil {
			t.Fatalf("%s: %v", ref, err)
		}
		if _, ok := s.Get(ref); !ok || img.ID == "" {
			t.Errorf("%s is not there under its own name", ref)
		}
	}
	for _, p := range []*proxy{empty, mirror} {
		if text := strings.Join(p.auths, ""); text != "" {
			t.Errorf("a mirror was given %q", text)
		}
	}
	refused(t, s, PullRequest{Reference: "broken.example/x"}, errdefs.ErrUnknown, "registry configuration")
}

func TestCustomCA(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1")}, DNSNames: []string{"registry.test"}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, _ := x509.MarshalECPrivateKey(key)
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{"crt": {Type: "CERTIFICATE", Bytes: der},
		"key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host := startRegistry(t, fmt.Sprintf("  tls:\n    certificate: %s/crt\n    key: %s/key\n", dir, dir))
	certs := t.TempDir()
	_ = os.MkdirAll(filepath.Join(certs, "tls.example"), 0o700)
	hosts := filepath.Join(certs, "tls.example", "hosts.toml")
	_ = os.WriteFile(hosts, []byte(fmt.Sprintf("[host.\"https://%s\"]\n", host)), 0o600)
	s := open(t, t.TempDir(), func(c *Config) { c.RegistryConfigDir = certs })
	_, err = s.Pull(t.Context(), PullRequest{Reference: "tls.example/x:v1"})
	if err == nil || !strings.Contains(err.Error(), "x509") && kindOf(err) != crierrors.ErrRegistryUnavailable {
		t.Errorf("an unknown CA was accepted: %v", err)
	}
	_ = os.WriteFile(hosts,
		[]byte(fmt.Sprintf("server = \"https://%s\"\n[host.\"https://%s\"]\nca = \"%s/crt\"\n", host, host, dir)), 0o600)
	_, err = s.Pull(t.Context(), PullRequest{Reference: "tls.example/x:v1"})
	if kindOf(err) != errdefs.ErrNotFound {
		t.Errorf("with the CA, and read anew, the answer should be that there is no such image: %v", err)
	}
}

// liar is a registry of one image that answers as it is told.
type liar struct {
	blobs map[string][]byte // by digest
	host  string
}

func startLiar(t *testing.T, img v1.Image, change func(l *liar)) *liar {
	t.Helper()
	l := &liar{blobs: map[string][]byte{}}
	raw, _ := img.RawManifest()
	d, _ := img.Digest()
	l.blobs[d.String()], l.blobs["v1"] = raw, raw
	cfg, _ := img.RawConfigFile()
	name, _ := img.ConfigName()
	l.blobs[name.String()] = cfg
	layers, _ := img.Layers()
	for _, layer := range layers {
		h, _ := layer.Digest()
		l.blobs[h.String()] = layer.(packed).blob
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, ref, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/x/"), "/")
		body, ok := l.blobs[ref]
		if !ok {
			w.WriteHeader(404)
			return
		}
		if strings.Contains(r.URL.Path, "manifests") {
			var m struct{ MediaType string }
			_ = json.Unmarshal(body, &m)
			w.Header().Set("Content-Type", m.MediaType)
			w.Header().Set("Docker-Content-Digest", d.String())
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		if r.Method != http.MethodHead {
			_, _ = w.Write(body)
		}
	}))
	t.Cleanup(srv.Close)
	u, _ := url.Parse(srv.URL)
	l.host = u.Host
	if change != nil {
		change(l)
	}
	return l
}

func TestLyingRegistry(t *testing.T) {
	good := gz(t, file("a", strings.Repeat("hello", 1000)))
	img := imageOf(t, good)
	layerHash, _ := good.Digest()
	configHash, _ := img.ConfigName()
	manifestHash, _ := img.Digest()
	flip := func(key string) func(*liar) {
		return func(l *liar) {
			b := bytes.Clone(l.blobs[key])
			b[len(b)/2] ^= 1
			l.blobs[key] = b
		}
	}
	cases := []struct {
		name   string
		img    v1.Image
		change func(*liar)
		kind   error
		words  string
	}{
		{"honest", img, nil, nil, ""},
		{"layer flipped", img, flip(layerHash.String()), errdefs.ErrDataLoss, "digest"},
		{"layer cut short", img, func(l *liar) { l.blobs[layerHash.String()] = l.blobs[layerHash.String()][:20] },
			errdefs.ErrDataLoss, "has 20 bytes, not the"},
		{"layer too long", img, func(l *liar) {
			l.blobs[layerHash.String()] = append(bytes.Clone(l.blobs[layerHash.String()]), "more"...)
		}, errdefs.ErrDataLoss, "promised"},
		{"layer gone", img, func(l *liar) { delete(l.blobs, layerHash.String()) }, errdefs.ErrNotFound, layerHash.String()},
		{"config flipped", img, flip(configHash.String()), errdefs.ErrDataLoss, "digest"},
		{"config cut short", img, func(l *liar) { l.blobs[configHash.String()] = l.blobs[configHash.String()][:5] },
			errdefs.ErrDataLoss, "not the"},
		{"manifest flipped", img, flip(manifestHash.String()), errdefs.ErrDataLoss, "digest"},
		{"diff id of another", wrongDiffID(t, good), nil, errdefs.ErrDataLoss, "diff id"},
		{"more diff ids than layers", wrongCount(t, good), nil, errdefs.ErrDataLoss, "diff ids"},
		{"no tar", imageOf(t, packed{[]byte("this is no tar at all"), []byte("this is no tar at all"), types.OCILayer}), nil,
			errdefs.ErrFailedPrecondition, "cannot be unpacked"},
		{"broken gzip", imageOf(t, packed{good.blob[:len(good.blob)/2], good.plain, types.OCILayer}), nil,
			errdefs.ErrFailedPrecondition, "cannot be unpacked"},
		{"hostile", imageOf(t, gz(t, file("ok", ""), file("../../evil", "x"))), nil, errdefs.ErrFailedPrecondition,
			"leads out"},
		{"hostile over good", imageOf(t, good, gz(t, entry{Header: tar.Header{Name: "l", Typeflag: tar.TypeLink,
			Linkname: "nowhere"}})), nil, errdefs.ErrFailedPrecondition, "nowhere"},
		{"manifest is no JSON", img, func(l *liar) {
			l.blobs["v1"] = []byte("{")
			l.blobs[manifestHash.String()] = l.blobs["v1"]
		}, errdefs.ErrDataLoss, "digest"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := startLiar(t, c.img, c.change)
			s := open(t, t.TempDir())
			ref := PullRequest{Reference: l.host + "/x:v1"}
			if c.kind == nil {
				pull(t, s, ref.Reference)
				return
			}
			_, err := s.Pull(t.Context(), ref)
			if kindOf(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.words) {
				t.Errorf("kind %v: %v; want kind %v with %q", kindOf(err), err, c.kind, c.words)
			}
			if len(s.List()) != 0 {
				t.Error("an image is listed")
			}
			swept(t, s)
			sound(t, s)
		})
	}
}

func editConfig(t *testing.T, img v1.Image, edit func(*v1.ConfigFile)) v1.Image {
	t.Helper()
	cf, _ := img.ConfigFile()
	cf = cf.DeepCopy()
	edit(cf)
	img, err := mutate.ConfigFile(img, cf)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func wrongDiffID(t *testing.T, l packed) v1.Image {
	return editConfig(t, imageOf(t, l), func(cf *v1.ConfigFile) {
		cf.RootFS.DiffIDs[0], _ = v1.NewHash(digest.FromString("another").String())
	})
}

func wrongCount(t *testing.T, l packed) v1.Image {
	return editConfig(t, imageOf(t, l), func(cf *v1.ConfigFile) {
		cf.RootFS.DiffIDs = append(cf.RootFS.DiffIDs, cf.RootFS.DiffIDs[0])
	})
}

func TestBounds(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/big:v1",
		imageOf(t, gz(t, file("a", strings.Repeat("x", 1<<20))), gz(t, file("b", "")), gz(t, file("c", ""))))
	for words, change := range map[string]func(*Config){
		"layers of an image: 3":     func(c *Config) { c.MaxLayers = 2 },
		"size of a manifest":        func(c *Config) { c.MaxManifestBytes = 10 },
		"size of an image config":   func(c *Config) { c.MaxConfigBytes = 10 },
		"size of an unpacked layer": func(c *Config) { c.MaxLayerBytes = 1000 },
	} {
		s := open(t, t.TempDir(), change)
		_, err := s.Pull(t.Context(), PullRequest{Reference: host + "/big:v1"})
		if kindOf(err) != errdefs.ErrResourceExhausted || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v", words, err)
		}
		swept(t, s)
	}
}

// hanging makes a proxy whose layers hang until the test ends; hangs tells of each.
func hanging(t *testing.T, host string) (*proxy, chan struct{}) {
	hangs, done := make(chan struct{}, 16), make(chan struct{})
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") &&
			!strings.Contains(r.Header.Get("Accept"), "config") {
			hangs <- struct{}{}
			_, _ = w.Write([]byte{0x1f, 0x8b})
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-done:
			}
			return
		}
		next.ServeHTTP(w, r)
	})
	t.Cleanup(func() { close(done) })
	return p, hangs
}

func bigImage(t *testing.T) v1.Image {
	noise := make([]byte, 1<<20)
	_, _ = rand.Read(noise)
	return imageOf(t, gz(t, file("a", string(noise))))
}

func TestCancelAndStall(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/slow:v1", bigImage(t))
	p, hangs := hanging(t, host)
	s := open(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 2)
	go func() {
		_, err := s.Pull(ctx, PullRequest{Reference: p.host + "/slow:v1"})
		result <- err
	}()
	<-hangs
	time.Sleep(50 * time.Millisecond)
	start := time.Now()
	cancel()
	if err := <-result; kindOf(err) != context.Canceled || time.Since(start) > 20*time.Second { // it stalls after 30
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	sound(t, s)
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Pull(short, PullRequest{Reference: p.host + "/slow:v1"}); kindOf(err) != context.DeadlineExceeded {
		t.Errorf("deadline: kind %v, %v", kindOf(err), err)
	}
	// All but the layer must come within this, on a busy machine, too.
	impatient := open(t, t.TempDir(), func(c *Config) { c.StallTimeout = timeouts.For(3 * time.Second) })
	if _, err := impatient.Pull(t.Context(), PullRequest{Reference: p.host + "/slow:v1"}); kindOf(
		err) != crierrors.ErrRegistryUnavailable || !strings.Contains(err.Error(), "stalled") {
		t.Errorf("stall: kind %v, %v", kindOf(err), err)
	}
	if img := pull(t, s, host+"/slow:v1"); img.ID == "" {
		t.Error("nothing else can be pulled")
	}
	sound(t, s)
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/big:v1", imageOf(t, gz(t, file("a", strings.Repeat("x", 8<<20)))))
	push(t, host+"/small:v1", imageOf(t, gz(t, file("a", "1"))))
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=2m"); err != nil {
		t.Fatal(err)
	}
	s := open(t, root)
	t.Cleanup(func() { _ = s.Close(); _ = unix.Unmount(root, unix.MNT_DETACH) })
	small := pull(t, s, host+"/small:v1")
	refused(t, s, PullRequest{Reference: host + "/big:v1"}, errdefs.ErrResourceExhausted, "remove images")
	filler, _ := os.Create(filepath.Join(root, "filler"))
	for {
		if _, err := filler.Write(make([]byte, 4096)); err != nil {
			break
		}
	}
	_ = filler.Close()
	if err := s.Remove(t.Context(), small.ID); err != nil || layersOnDisk(t, s) != 0 {
		t.Errorf("remove at 0 bytes free: %v", err)
	}
}

// TestKilledPull kills a process in the middle of a pull; the next Open of the store collects what it left.
func TestKilledPull(t *testing.T) {
	t.Parallel()
	if root := os.Getenv("KILLED_PULL_ROOT"); root != "" {
		s, err := Open(standard(root))
		if err == nil {
			_, err = s.Pull(context.Background(), PullRequest{Reference: os.Getenv("KILLED_PULL_REF")})
		}
		t.Fatalf("not killed: %v", err)
	}
	host := startRegistry(t, "")
	push(t, host+"/slow:v1", bigImage(t))
	p, hangs := hanging(t, host)
	root := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=TestKilledPull")
	cmd.Env = append(os.Environ(), "KILLED_PULL_ROOT="+root, "KILLED_PULL_REF="+p.host+"/slow:v1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-hangs
	for {
		if left, _ := os.ReadDir(filepath.Join(root, catalog.IngestDir)); len(left) > 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	s := open(t, root)
	sound(t, s)
	if len(s.List()) != 0 || layersOnDisk(t, s) != 0 {
		t.Error("something of the killed pull is in use")
	}
	pull(t, s, host+"/slow:v1")
	sound(t, s)
}
