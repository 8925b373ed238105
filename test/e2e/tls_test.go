package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
)

// TestStreamsOverTLS has a daemon with a certificate, which is replaced while it serves.
func TestStreamsOverTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	pair := func() (ca []byte) {
		t.Helper()
		ca, c, k, err := fixture.Certificate("localhost", []byte{127, 0, 0, 1})
		// A daemon may look between the two files, and has no pair then: it uses the one before.
		if err := errors.Join(err, os.WriteFile(key, k, 0o600), os.WriteFile(cert, c, 0o600)); err != nil {
			t.Fatal(err)
		}
		return ca
	}
	ca := pair()
	r := ownNode(t,
		node.Options{Runtime: runtimes()[0], Tables: fmt.Sprintf("[streaming]\ncert = %q\nkey = %q\n", cert, key)})
	r.pull("busybox:latest")
	c := r.pod().start(busybox("main", "sleep 1000"))
	say := func(transport string, trusts []byte) (string, error) {
		address := c.execURL(&v1.ExecRequest{Cmd: sh("cat; exit 0"), Stdin: true, Stdout: true})
		if !strings.HasPrefix(address, "https://127.0.0.1:") {
			t.Errorf("the address is %s", address)
		}
		address, _ = r.reach(address)
		e, err := transports[transport](&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: trusts}}, address)
		r.ok(err)
		in, typed := io.Pipe()
		out := &transcript{}
		go func() {
			_, _ = io.WriteString(typed, "hello")
			_ = typed.Close()
		}()
		err = e.StreamWithContext(ctx(), remotecommand.StreamOptions{Stdin: in, Stdout: out})
		return out.String(), err
	}
	for name := range transports {
		if name == "websocket-v4" {
			continue // its clients cannot end their input
		}
		if out, err := say(name, ca); out != "hello" || err != nil {
			r.Errorf("%s: %q, %v", name, out, err)
		}
		// Who trusts another authority does not speak to it.
		other, _, _, err := fixture.Certificate("localhost", []byte{127, 0, 0, 1})
		r.ok(err)
		if out, err := say(name, other); err == nil || !strings.Contains(err.Error(), "certificate") {
			r.Errorf("%s trusts what it does not know: %q, %v", name, out, err)
		}
	}
	r.forwardOverTLS(c.pod, ca)

	// In clear text nothing is answered.
	address, _ := r.reach(c.execURL(&v1.ExecRequest{Cmd: sh("echo leaked"), Stdout: true}))
	plain := strings.Replace(address, "https:", "http:", 1)
	if out := (&transcript{}); r.stream(ctx(), "spdy", plain, remotecommand.StreamOptions{Stdout: out}) == nil ||
		out.String() != "" {
		r.Errorf("in clear text it says %q", out)
	}
	if out, err := say("spdy", pair()); out != "hello" || err != nil {
		r.Errorf("with the new certificate: %q, %v", out, err)
	}
	if _, err := say("spdy", ca); err == nil {
		r.Error("the old certificate is still in use")
	}
}

// forwardOverTLS has something come back from a port of the pod.
func (r rig) forwardOverTLS(p *pod, ca []byte) {
	r.Helper()
	port := p.listen("tcp4", "127.0.0.1:0", echo)
	resp, err := r.n.Runtime.PortForward(ctx(), &v1.PortForwardRequest{PodSandboxId: p.id, Port: []int32{int32(port)}})
	r.ok(err)
	address, _ := r.reach(resp.Url)
	at, err := url.Parse(address)
	r.ok(err)
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
	r.ok(err)
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	client, err := portforward.NewOnAddresses(
		spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, at),
		[]string{"127.0.0.1"}, []string{fmt.Sprintf(":%d", port)}, stop, ready, io.Discard, io.Discard)
	r.ok(err)
	go func() { ended <- client.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		r.Fatalf("the port is not forwarded: %v", err)
	}
	ports, err := client.GetPorts()
	r.ok(err)
	f := &forward{address: fmt.Sprintf("127.0.0.1:%d", ports[0].Local), relay: &relay{rig: r}}
	conn := f.dial()
	defer conn.Close()
	_, err = conn.Write([]byte("hello"))
	r.ok(err)
	r.ok(conn.CloseWrite())
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
		r.Errorf("through the port came %q, %v", got, err)
	}
	close(stop)
	<-ended
}

// TestStreamingCertificateThatIsNone keeps a daemon from starting, and says why.
func TestStreamingCertificateThatIsNone(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "tls.crt")
	_, err := node.Open(
		node.Options{Runtime: runtimes()[0], Tables: fmt.Sprintf("[streaming]\ncert = %q\nkey = %q\n", missing, missing)})
	if err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("a daemon without its certificate: %v", err)
	}
}
