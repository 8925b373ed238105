package stream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/limit"
	"berth/test/fixture"
	"berth/test/timeouts"
)

// deaf is a node whose commands read nothing and end with their client.
type deaf struct {
	began chan struct{}
	ended chan error
}

func (d deaf) Exec(ctx context.Context, _ string, _ []string, _ bool, _ Streams) (int, error) {
	d.began <- struct{}{}
	<-ctx.Done()
	d.ended <- ctx.Err()
	return 0, ctx.Err()
}

func (deaf) Attach(context.Context, string, Streams) error { return errors.New("nobody attaches") }

func (deaf) Dial(context.Context, string, uint16) (Conn, error) {
	return nil, errors.New("there is no pod")
}

func serve(t *testing.T, change func(*Config)) (*Server, deaf) {
	t.Helper()
	d := deaf{make(chan struct{}, 1), make(chan error, 1)}
	cfg := Config{Node: d, Log: slog.New(slog.DiscardHandler), Address: "127.0.0.1", IdleTimeout: time.Minute}
	if change != nil {
		change(&cfg)
	}
	s, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve() }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
	return s, d
}

func TestTickets(t *testing.T) {
	now := time.Now()
	const most = 1000
	k := &tickets{now: func() time.Time { return now }, waiting: limit.Sessions.At(most)}
	issue := func() string {
		t.Helper()
		token, err := k.issue("exec", "c", "what")
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	token := issue()
	if _, ok := k.use("attach", token); ok {
		t.Error("it is good for something else")
	}
	if what, ok := k.use("exec", token); !ok || what.req != "what" {
		t.Errorf("%v, %v", what, ok)
	}
	if _, ok := k.use("exec", token); ok {
		t.Error("it is good twice")
	}
	token = issue()
	now = now.Add(ticketTime)
	if _, ok := k.use("exec", token); ok {
		t.Error("it is good for ever")
	}
	for range most {
		token = issue()
	}
	if _, err := k.issue("exec", "c", ""); !errdefs.IsResourceExhausted(err) {
		t.Errorf("more than %d: %v", most, err)
	}
	if _, ok := k.use("exec", token); !ok {
		t.Error("the last one is not good")
	}
	issue()
	now = now.Add(2 * ticketTime)
	issue()
	if len(k.open) != 1 || len(k.order) != 1 {
		t.Errorf("%d and %d are kept of one", len(k.open), len(k.order))
	}
	for range 3 * most { // used ones are no load, whatever their number
		if _, ok := k.use("exec", issue()); !ok {
			t.Fatal("a fresh one is not good")
		}
	}
}

// upgrade opens an exec over a WebSocket.
func upgrade(t *testing.T, address string) net.Conn {
	t.Helper()
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", at.Host)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(c, "GET "+at.Path+" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://x\r\nSec-WebSocket-Protocol: "+
		"v5.channel.k8s.io\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestClientsThatGo are noticed, also where what they sent waits for somebody to read it.
func TestClientsThatGo(t *testing.T) {
	s, d := serve(t, nil)
	for _, input := range []int{0, 200 << 10} {
		address, err := s.Exec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		c := upgrade(t, address)
		<-d.began
		for range input / 100 { // frames of 100 bytes of input
			if _, err := c.Write(append([]byte{0x82, 0x80 | 101, 0, 0, 0, 0, 0}, make([]byte, 100)...)); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		_ = c.Close()
		select {
		case <-d.ended:
		case <-time.After(checkTime + time.Minute):
			t.Fatalf("with %d bytes on the way the end was not noticed", input)
		}
		// or it was seen only when the connection was looked at
		if took := time.Since(began); input == 0 && took > checkTime*9/10 {
			t.Errorf("it took %v", took)
		}
	}
}

func TestCloseEndsStreams(t *testing.T) {
	d := deaf{make(chan struct{}, 1), make(chan error, 1)}
	s, err := Listen(Config{Node: d, Log: slog.New(slog.DiscardHandler), Address: "127.0.0.1", IdleTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve() }()
	address, err := s.Exec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	c := upgrade(t, address)
	defer c.Close()
	<-d.began
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-d.ended
}

// TestTLS has the certificate replaced, first by something that is none.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	pool := x509.NewCertPool()
	pair := func(name string, at time.Time) {
		t.Helper()
		ca, c, k, err := fixture.Certificate(name, net.IPv4(127, 0, 0, 1))
		if err != nil {
			t.Fatal(err)
		}
		pool.AppendCertsFromPEM(ca)
		put(t, cert, c, at)
		put(t, key, k, at)
	}
	now := time.Now()
	pair("one", now)
	s, _ := serve(t, func(c *Config) { c.CertFile, c.KeyFile = cert, key })
	speak := func() string {
		t.Helper()
		address, err := s.PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "p"})
		if err != nil || !strings.HasPrefix(address, "https://127.0.0.1:") {
			t.Fatalf("%s, %v", address, err)
		}
		client := &http.Client{
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
		resp, err := client.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.TLS.PeerCertificates[0].Subject.CommonName
	}
	if got := speak(); got != "one" {
		t.Errorf("it shows %s", got)
	}
	put(t, cert, []byte("rubbish"), now.Add(time.Second))
	if got := speak(); got != "one" {
		t.Errorf("it shows %s", got)
	}
	pair("two", now.Add(2*time.Second))
	if got := speak(); got != "two" {
		t.Errorf("it shows %s", got)
	}
	if _, err := Listen(Config{Node: deaf{}, Log: slog.New(slog.DiscardHandler), Address: "127.0.0.1", CertFile: cert,
		KeyFile: dir}); err == nil {
		t.Error("it listens without a key")
	}
}

// TestUnusableCertificateIsToldOnce in the log, however many clients connect meanwhile, and again when it was usable.
func TestUnusableCertificateIsToldOnce(t *testing.T) {
	_, cert, key, err := fixture.Certificate("one", net.IPv4(127, 0, 0, 1))
	if err != nil {
		t.Fatal(err)
	}
	dir, said := t.TempDir(), &strings.Builder{}
	p := &keyPair{cert: filepath.Join(dir, "crt"), key: filepath.Join(dir, "key"),
		log: slog.New(slog.NewTextHandler(said, nil))}
	now := time.Now()
	put(t, p.key, key, now)
	want := 0
	for range 2 {
		for name, spoil := range map[string]func(){
			"missing": func() { _ = os.Remove(p.cert) },
			"rubbish": func() { put(t, p.cert, []byte("rubbish"), now.Add(time.Second)) },
		} {
			put(t, p.cert, cert, now)
			if _, err := p.get(nil); err != nil {
				t.Fatal(err)
			}
			spoil()
			for range 100 {
				if _, err := p.get(nil); err != nil {
					t.Fatal(err)
				}
			}
			want++
			if got := strings.Count(said.String(), "cannot be used"); got != want {
				t.Fatalf("%s: it was told %d times, wanted %d:\n%.1000s", name, got, want, said)
			}
		}
	}
}

func put(t *testing.T, path string, data []byte, at time.Time) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, data, 0o600), os.Chtimes(path, at, at)); err != nil {
		t.Fatal(err)
	}
}

// TestAddresses are what a kubelet on this node can reach.
func TestAddresses(t *testing.T) {
	for listen, told := range map[string]string{"127.0.0.1": "127.0.0.1:", "0.0.0.0": "127.0.0.1:", "::": "[::1]:",
		"localhost": "localhost:", "::1": "[::1]:"} {
		s, _ := serve(t, func(c *Config) { c.Address = listen })
		address, err := s.PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "p"})
		if err != nil || !strings.HasPrefix(address, "http://"+told) {
			t.Errorf("%s: %s, %v", listen, address, err)
		}
		resp, err := http.Get(address)
		if err != nil {
			t.Errorf("%s: %v", listen, err)
			continue
		}
		_ = resp.Body.Close()
	}
}

// TestManyPorts wants a request with more ports than a WebSocket has channels for to be refused.
func TestManyPorts(t *testing.T) {
	s, _ := serve(t, nil)
	ports := make([]int32, limit.ForwardedPorts.Limit)
	for i := range ports {
		ports[i] = int32(i + 1)
	}
	if _, err := s.PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "p", Port: ports}); err != nil {
		t.Error(err)
	}
	_, err := s.PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "p", Port: append(ports, 80)})
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("a port too many: %v", err)
	}
}

// TestSessionsAreCounted until they end, also those whose token nobody used.
func TestSessionsAreCounted(t *testing.T) {
	now := time.Now()
	k := &tickets{now: func() time.Time { return now }, waiting: limit.Sessions.At(100),
		sessions: limit.OpenSessions.At(5), ofTarget: limit.TargetSessions.At(2)}
	issue := func(target, beyond string) string {
		t.Helper()
		token, err := k.issue("exec", target, nil)
		var reached *limit.Error
		if errors.As(err, &reached) {
			if reached.Budget.Name != beyond {
				t.Fatalf("%s: %v", target, err)
			}
		} else if err != nil || beyond != "" {
			t.Fatalf("%s: %v, not beyond %q", target, err, beyond)
		}
		return token
	}
	begin := func(token string, want bool) {
		t.Helper()
		if _, ok := k.use("exec", token); ok != want {
			t.Errorf("a token is good: %v", ok)
		}
	}
	for range 3 {
		begin(issue("a", ""), true)
		issue("a", "")
		issue("a", limit.TargetSessions.Name)
		now = now.Add(2 * ticketTime) // of the one that nobody used
		issue("a", "")
		k.end("a")
		begin(issue("a", ""), true)
		issue("a", limit.TargetSessions.Name)
		k.end("a")
		now = now.Add(2 * ticketTime)
	}
	late := issue("a", "")
	now = now.Add(2 * ticketTime)
	begin(late, false)
	for _, target := range []string{"a", "a", "b", "b", "c"} {
		begin(issue(target, ""), true)
	}
	issue("d", limit.OpenSessions.Name)
	for _, target := range []string{"a", "a", "b", "b", "c"} {
		k.end(target)
	}
	if len(k.load) != 0 || k.begun != 0 || len(k.open) != 0 {
		t.Errorf("%v, %d, %v are left of nothing", k.load, k.begun, k.open)
	}
}

// TestIdleConnections has strangers connect and say nothing: those who have an address are served, and keep being so.
func TestIdleConnections(t *testing.T) {
	s, d := serve(t, func(c *Config) { c.MaxTargetSessions = 1 })
	ask := func() string {
		t.Helper()
		address, err := s.Exec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		return address
	}
	address := ask()
	client := upgrade(t, address)
	defer client.Close()
	<-d.began
	_, err := s.Exec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdin: true})
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("a second session: %v", err)
	}
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	var idle []net.Conn
	for range limit.IdleConnections.Limit + 20 {
		c, err := net.Dial("tcp", at.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	for _, c := range idle[:20] {
		_ = c.SetReadDeadline(time.Now().Add(timeouts.For(time.Minute)))
		var e net.Error
		if _, err := c.Read(make([]byte, 1)); errors.As(err, &e) && e.Timeout() {
			t.Fatal("the oldest connection is not ended")
		}
	}
	select {
	case <-d.ended:
		t.Error("a session ended for those who say nothing")
	default:
	}
	_ = client.Close()
	<-d.ended
	for deadline := time.Now().Add(timeouts.For(30 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
		s.tickets.mu.Lock()
		begun := s.tickets.begun
		s.tickets.mu.Unlock()
		if begun == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the session that ended is counted")
		}
	}
	client = upgrade(t, ask())
	defer client.Close()
	<-d.began
}

// TestOldestIdleConnectionGoes for the newest, unless it is in use.
func TestOldestIdleConnectionGoes(t *testing.T) {
	l := &listener{}
	var all []*line
	for i := range int(limit.IdleConnections.Limit) {
		all = append(all, &line{})
		if over := l.addIdle(all[i]); over != nil {
			t.Fatalf("one goes for number %d", i)
		}
	}
	l.use(all[0])
	if over := l.addIdle(&line{}); over != nil {
		t.Error("one goes though there is room")
	}
	if over := l.addIdle(&line{}); over != all[1] {
		t.Errorf("%p goes, not the oldest %p", over, all[1])
	}
}
