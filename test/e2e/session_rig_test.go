package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
)

// relay makes an address of a node's daemon reachable from outside the node's space, until the test is over. cut ends
// every connection at once, as a client does that is killed.
type relay struct {
	rig
	listener net.Listener
	mu       sync.Mutex // guards conns
	conns    []net.Conn
}

// reach returns the address of a stream as the test reaches it.
func (r rig) reach(address string) (string, *relay) {
	r.Helper()
	at, err := url.Parse(address)
	r.ok(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	r.ok(err)
	y := &relay{rig: r, listener: l}
	r.Cleanup(y.cut)
	target := at.Host
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go y.pass(c, target)
		}
	}()
	at.Host = l.Addr().String()
	return at.String(), y
}

func (y *relay) pass(c net.Conn, target string) {
	defer c.Close()
	d, err := y.n.Space.DialContext(context.Background(), "tcp", target)
	if err != nil {
		return
	}
	defer d.Close()
	y.mu.Lock()
	y.conns = append(y.conns, c, d)
	y.mu.Unlock()
	go func() {
		_, _ = io.Copy(d, c)
		_ = d.Close()
	}()
	_, _ = io.Copy(c, d)
}

func (y *relay) cut() {
	_ = y.listener.Close()
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, c := range y.conns {
		_ = c.Close()
	}
}

// The ways in which clients speak to a streaming server.
var transports = map[string]func(config *rest.Config, address string) (remotecommand.Executor, error){
	"spdy": func(config *rest.Config, address string) (remotecommand.Executor, error) {
		at, err := url.Parse(address)
		if err != nil {
			return nil, err
		}
		return remotecommand.NewSPDYExecutor(config, http.MethodPost, at)
	},
	"websocket-v4": func(config *rest.Config, address string) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutorForProtocols(config, http.MethodGet, address, "v4.channel.k8s.io")
	},
	"websocket-v5": func(config *rest.Config, address string) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(config, http.MethodGet, address)
	},
}

// stream joins the streams behind an address, as transports do.
func (r rig) stream(ctx context.Context, transport, address string, o remotecommand.StreamOptions) error {
	r.Helper()
	e, err := transports[transport](&rest.Config{}, address)
	r.ok(err)
	return e.StreamWithContext(ctx, o)
}

// execURL is the address of a command in the container.
func (c *ctr) execURL(req *v1.ExecRequest) string {
	c.Helper()
	req.ContainerId = c.cid
	resp, err := c.n.Runtime.Exec(ctx(), req)
	c.ok(err)
	return resp.Url
}

// attachURL is the address at which the container can be attached to.
func (c *ctr) attachURL(req *v1.AttachRequest) string {
	c.Helper()
	req.ContainerId = c.cid
	resp, err := c.n.Runtime.Attach(ctx(), req)
	c.ok(err)
	return resp.Url
}

func sh(script string) []string { return []string{"sh", "-c", script} }

// transcript may be read while it is written to.
type transcript struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *transcript) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *transcript) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *transcript) has(text string) func() bool {
	return func() bool { return strings.Contains(b.String(), text) }
}

// descriptors are how many the daemon has open.
func (r rig) descriptors() int {
	r.Helper()
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(r.n.Pid()) + "/fd")
	r.ok(err)
	return len(entries)
}

// pipes are those from the pod's monitor to the daemon. For each client that is attached there are three, of which the
// daemon has one end alone once the monitor has said that it is attached.
func (p *pod) pipes() map[string]bool {
	p.Helper()
	ends := func(pid int) map[string]int {
		found := map[string]int{}
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "pipe:") {
				found[to]++
			}
		}
		return found
	}
	shared, theirs := map[string]bool{}, ends(p.monitor())
	for pipe, n := range ends(p.n.Pid()) {
		if n == 1 && theirs[pipe] > 0 {
			shared[pipe] = true
		}
	}
	return shared
}

// attached waits until so many more clients are attached than there were when the pod had the pipes before.
func (p *pod) attached(before map[string]bool, clients int) {
	p.Helper()
	p.eventually(fmt.Sprintf("%d clients are attached", clients), func() bool {
		more := 0
		for pipe := range p.pipes() {
			if !before[pipe] {
				more++
			}
		}
		return more == 3*clients
	})
}

// listen serves connections to an address inside the pod's network namespace until the test is over.
func (p *pod) listen(network, address string, serve func(*net.TCPConn)) (port int) {
	p.Helper()
	var l net.Listener
	p.ok(p.n.Space.Do(func() (err error) {
		if !p.hostNetwork() {
			ns, err := os.Open("/run/netns/" + p.n.Instance + "-" + p.id)
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
		}
		l, err = net.Listen(network, address)
		return err
	}))
	p.Cleanup(func() { _ = l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go serve(c.(*net.TCPConn))
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func (p *pod) hostNetwork() bool {
	return p.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == v1.NamespaceMode_NODE
}

// forward forwards a port of the pod with the client that kubectl has, over SPDY or tunnelled through a WebSocket. What
// the client says of failures is in errs. It ends with the test, or by stop.
type forward struct {
	address string
	errs    *transcript
	ended   chan error
	stop    func()
	*relay
}

func (p *pod) forward(port int, tunnelled bool) *forward {
	p.Helper()
	at, y := p.forwardURL(port)
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	p.ok(err)
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, at)
	if tunnelled {
		dialer, err = portforward.NewSPDYOverWebsocketDialer(at, &rest.Config{})
		p.ok(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	f := &forward{errs: &transcript{}, ended: make(chan error, 1), relay: y, stop: sync.OnceFunc(func() { close(stop) })}
	client, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{":" + strconv.Itoa(port)}, stop,
		ready, io.Discard, f.errs)
	p.ok(err)
	go func() { f.ended <- client.ForwardPorts() }()
	p.Cleanup(f.stop)
	select {
	case <-ready:
	case err := <-f.ended:
		p.Fatalf("the port is not forwarded: %v", err)
	case <-time.After(time.Minute):
		p.Fatal("the port is not forwarded")
	}
	ports, err := client.GetPorts()
	p.ok(err)
	f.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local)))
	return f
}

// forwardURL is the address of a port-forward.
func (p *pod) forwardURL(port int) (*url.URL, *relay) {
	p.Helper()
	resp, err := p.n.Runtime.PortForward(ctx(), &v1.PortForwardRequest{PodSandboxId: p.id, Port: []int32{int32(port)}})
	p.ok(err)
	address, y := p.reach(resp.Url)
	at, err := url.Parse(address)
	p.ok(err)
	return at, y
}

// streamTo is one stream to a port of the pod.
func (p *pod) streamTo(port int) httpstream.Stream {
	p.Helper()
	at, _ := p.forwardURL(port)
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	p.ok(err)
	conn, _, err := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, at).Dial(
		portforward.PortForwardProtocolV1Name)
	p.ok(err)
	p.Cleanup(func() { _ = conn.Close() })
	header := http.Header{}
	header.Set(core.PortHeader, strconv.Itoa(port))
	header.Set(core.PortForwardRequestIDHeader, "1")
	var s httpstream.Stream
	for _, kind := range []string{core.StreamTypeError, core.StreamTypeData} {
		header.Set(core.StreamType, kind)
		s, err = conn.CreateStream(header)
		p.ok(err)
	}
	return s
}

// dial connects to the forwarded port.
func (f *forward) dial() *net.TCPConn {
	f.Helper()
	c, err := net.Dial("tcp", f.address)
	f.ok(err)
	f.ok(c.SetDeadline(time.Now().Add(2 * time.Minute)))
	return c.(*net.TCPConn)
}
