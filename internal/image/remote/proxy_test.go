package remote

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// away is an address that no rule about loopback is for, in a space that a test made.
const away = "10.231.7.1"

// TestProxiesOfTheEnvironment pulls in a process and a network namespace of its own, for the environment is read once
// and loopback goes past every proxy.
func TestProxiesOfTheEnvironment(t *testing.T) {
	if mode := os.Getenv("REMOTE_PROXY_TEST"); mode != "" {
		throughProxy(t, mode)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	for mode, env := range map[string][]string{
		"http":   {"HTTP_PROXY=http://user:s3cret@" + away + ":3128"},
		"https":  {"HTTPS_PROXY=http://user:s3cret@" + away + ":3128"},
		"direct": {"HTTP_PROXY=http://" + away + ":3128", "NO_PROXY=" + away},
		"gone":   {"HTTP_PROXY=http://user:s3cret@" + away + ":1"},
	} {
		t.Run(mode, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=TestProxiesOfTheEnvironment$", "-test.count=1", "-test.timeout=120s")
			cmd.Env = append(os.Environ(), append(env, "REMOTE_PROXY_TEST="+mode)...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// throughProxy runs in the child: registry and proxy are in one process, the requests go from one to the other all the
// same.
func throughProxy(t *testing.T, mode string) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := netlink.ParseAddr(away + "/32")
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(lo, addr); err != nil {
		t.Fatal(err)
	}
	at := func(port string, run func(*httptest.Server)) func(*httptest.Server) {
		return func(h *httptest.Server) {
			_ = h.Listener.Close()
			if h.Listener, err = net.Listen("tcp", away+":"+port); err != nil {
				t.Fatal(err)
			}
			run(h)
		}
	}
	passed := make(chan string, 100)
	start(t, func(w http.ResponseWriter, r *http.Request) bool {
		passed <- r.Header.Get("Proxy-Authorization")
		if r.Method == http.MethodConnect {
			tunnel(w, r.Host)
			return true
		}
		through := &http.Transport{DisableKeepAlives: true}
		(&httputil.ReverseProxy{Transport: through, Rewrite: func(*httputil.ProxyRequest) {}}).ServeHTTP(w, r)
		return true
	}, at("3128", (*httptest.Server).Start))
	run := (*httptest.Server).Start
	if mode == "https" {
		run = (*httptest.Server).StartTLS
	}
	registry := start(t, nil, at("5000", run))
	body := noise(t, 1000)
	desc := registry.put(body)
	r := newRig(t, Options{clock: quick()})
	r.hosts(t, registry.host, "server = %q\nskip_verify = %v\n", registry.URL, mode == "https")
	got, err := fetch(t.Context(), r.repo(t, registry.host+"/app", nil), desc)
	if mode == "gone" {
		fails(t, err, crierrors.ErrRegistryUnavailable, "proxy")
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the proxy's password in %v", err)
		}
		return
	}
	if err != nil || !bytes.Equal(got, body) {
		t.Fatalf("got %d bytes, %v", len(got), err)
	}
	if n := len(passed); (n > 0) != (mode != "direct") {
		t.Errorf("%d requests went through the proxy", n)
	}
	if mode != "direct" && <-passed == "" {
		t.Error("the proxy was not given its credentials")
	}
}

func tunnel(w http.ResponseWriter, to string) {
	up, err := net.Dial("tcp", to)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer up.Close()
	down, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer down.Close()
	_, _ = io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(up, down) }()
	_, _ = io.Copy(down, up)
}
