package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"berth/test/timeouts"
)

// shown is a plugin that is shown what there is.
type shown struct {
	synchronize func(ctx context.Context) error
}

// Synchronize does as the test says.
func (s *shown) Synchronize(
	ctx context.Context, _ []*api.PodSandbox, _ []*api.Container,
) ([]*api.ContainerUpdate, error) {
	return nil, s.synchronize(ctx)
}

// StopPodSandbox is an event for the plugin to ask for.
func (*shown) StopPodSandbox(context.Context, *api.PodSandbox) error { return nil }

// joined is how the synchronisation of a plugin went, and how long it took.
type joined struct {
	err  error
	took time.Duration
}

// quiet has the library say nothing.
func quiet() { libraryLog.to(logger{slog.New(slog.DiscardHandler), &health{}}) }

// run starts an adaptation with the options of p, which shows each plugin that joins a pod, with so many bytes of
// annotations.
func run(t *testing.T, p *Plugins, bytes int) <-chan joined {
	t.Helper()
	return runWith(t, p, pods("a", 1, bytes), nil)
}

// pods are n pods, each with so many bytes of annotations.
func pods(id string, n, bytes int) (all []*api.PodSandbox) {
	for range n {
		all = append(all, &api.PodSandbox{Id: id, Annotations: map[string]string{"large": strings.Repeat("x", bytes)}})
	}
	return all
}

// runWith is run for these pods and containers.
func runWith(t *testing.T, p *Plugins, pods []*api.PodSandbox, containers []*api.Container) <-chan joined {
	t.Helper()
	p.socket = newSocket(filepath.Join(t.TempDir(), "nri.sock"), "me")
	results := make(chan joined, 10)
	show := func(ctx context.Context, show adaptation.SyncCB) error {
		begin := time.Now()
		_, err := recovered(show)(ctx, pods, containers)
		results <- joined{err, time.Since(begin)}
		return err
	}
	quiet()
	adaptation.SetPluginRequestTimeout(p.cfg.RequestTimeout)
	adaptation.SetPluginRegistrationTimeout(p.cfg.RegistrationTimeout)
	none := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	a, err := adaptation.New("berth", "0", show, none, p.options("")...)
	if err == nil {
		p.a = a
		err = errors.Join(p.socket.prepare(), a.Start(), p.placeSocket())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	<-results // of the plugins that are installed, which are none
	return results
}

// plugins are some whose timeouts are those.
func plugins(request, synchronisation time.Duration) *Plugins {
	return New(Config{
		RegistrationTimeout: timeouts.For(20 * time.Second),
		RequestTimeout:      request, SynchronizationTimeout: synchronisation,
		Log: slog.New(slog.DiscardHandler),
	})
}

// join connects a plugin.
func join(t *testing.T, p *Plugins, plugin any, more ...stub.Option) stub.Stub {
	t.Helper()
	s, err := stub.New(plugin, append([]stub.Option{
		stub.WithPluginIdx("10"), stub.WithPluginName("p"), stub.WithSocketPath(p.socket.path),
	}, more...)...)
	if err == nil {
		err = s.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// wait is the next result.
func wait(t *testing.T, results <-chan joined) joined {
	t.Helper()
	select {
	case r := <-results:
		return r
	case <-time.After(timeouts.For(time.Minute)):
		t.Fatal("the synchronisation of a plugin does not end")
		return joined{}
	}
}

// A plugin that takes longer for its synchronisation than a request may take is not dropped, and is told how long it
// has.
func TestSynchronisationHasItsOwnTime(t *testing.T) {
	p := plugins(100*time.Millisecond, timeouts.For(time.Minute))
	results := run(t, p, 1)
	var left time.Duration
	join(t, p, &shown{synchronize: func(ctx context.Context) error {
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		select {
		case <-time.After(4 * p.cfg.RequestTimeout):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	if r := wait(t, results); r.err != nil || r.took < 4*p.cfg.RequestTimeout {
		t.Errorf("after %v: %v", r.took, r.err)
	}
	if left < p.cfg.SynchronizationTimeout/2 {
		t.Errorf("the plugin was told that it has %v", left)
	}
	if s := p.roll.names; len(s) != 1 || s["10-p"] != struct{}{} {
		t.Errorf("those that take part: %v", s)
	}
}

// One that does not answer is dropped when that time is over: no earlier, and not much later.
func TestSynchronisationEnds(t *testing.T) {
	for name, request := range map[string]time.Duration{
		"longer than a request": 50 * time.Millisecond, "shorter": timeouts.For(time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			p := plugins(request, 400*time.Millisecond)
			results := run(t, p, 1)
			var dropped atomic.Bool
			end := make(chan struct{})
			defer close(end)
			hangs := &shown{synchronize: func(context.Context) error { <-end; return nil }}
			join(t, p, hangs, stub.WithOnClose(func() { dropped.Store(true) }))
			r := wait(t, results)
			late := timeouts.For(20 * time.Second)
			if !errors.Is(r.err, context.DeadlineExceeded) || r.took < 400*time.Millisecond || r.took > late {
				t.Errorf("after %v: %v", r.took, r.err)
			}
			for begin := time.Now(); !dropped.Load(); {
				if time.Since(begin) > late {
					t.Fatal("it is not dropped")
				}
				time.Sleep(time.Millisecond)
			}
			release := holdOff(t, p) // is not held up by it
			release()
		})
	}
}

// deaf is a connection of which nothing is read once it is closed to reading, as when its process is stopped.
type deaf struct {
	net.Conn
	from, end chan struct{}
}

func (d *deaf) Read(b []byte) (int, error) {
	select {
	case <-d.from:
		<-d.end
		return 0, net.ErrClosed
	default:
		return d.Conn.Read(b)
	}
}

// Configure is answered, and then nothing is read any more.
type stopping struct {
	shown
	d *deaf
}

func (s *stopping) Configure(context.Context, string, string, string) (stub.EventMask, error) {
	close(s.d.from)
	return 0, nil
}

// What does not fit into the socket's buffer is written until the time is over, and no longer: a write has no
// deadline of its own.
func TestPluginThatDoesNotReadIsDropped(t *testing.T) {
	p := plugins(timeouts.For(10*time.Second), 500*time.Millisecond)
	results := run(t, p, 3<<20)
	conn, err := net.Dial("unix", p.socket.path)
	if err != nil {
		t.Fatal(err)
	}
	d := &deaf{Conn: conn, from: make(chan struct{}), end: make(chan struct{})}
	plugin := &stopping{d: d, shown: shown{synchronize: func(context.Context) error { return nil }}}
	s, err := stub.New(plugin, stub.WithPluginIdx("10"), stub.WithPluginName("p"), stub.WithConnection(d))
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	go func() {
		defer close(started)
		_ = s.Start(context.Background()) // may not read that it is registered
	}()
	t.Cleanup(func() {
		close(d.end)
		_ = conn.Close()
		<-started
		s.Stop()
	})
	if r := wait(t, results); !errors.Is(r.err, context.DeadlineExceeded) || r.took < 500*time.Millisecond {
		t.Errorf("after %v: %v", r.took, r.err)
	}
	holdOff(t, p)()
}

// gate is a connection of which nothing is read while it is locked, as when its process is stopped and goes on later.
type gate struct {
	net.Conn
	sync.RWMutex
}

func (g *gate) Read(b []byte) (int, error) {
	g.RLock()
	defer g.RUnlock()
	return g.Conn.Read(b)
}

// stop locks it as soon as the read ends that is under way.
func (g *gate) stop() (stopped <-chan struct{}) {
	locked := make(chan struct{})
	go func() {
		g.Lock()
		close(locked)
	}()
	return locked
}

// patient is a plugin that asks to be kept when it does not answer in time.
type patient struct {
	shown
	stopped atomic.Int64 // pods that it was told of
}

func (p *patient) StopPodSandbox(context.Context, *api.PodSandbox) error {
	p.stopped.Add(1)
	return nil
}

// A plugin that asks to be kept although it does not answer in time is kept for a while. One that reads nothing for too
// long is dropped all the same, and nothing of what it was sent is left.
func TestPatienceWithAPluginThatDoesNotReadEnds(t *testing.T) {
	p := plugins(timeouts.For(20*time.Second), timeouts.For(20*time.Second))
	results := run(t, p, 1)
	conn, err := net.Dial("unix", p.socket.path)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{Conn: conn}
	plugin := &patient{shown: shown{synchronize: func(context.Context) error { return nil }}}
	join(t, p, plugin, stub.WithConnection(g), stub.WithFailurePolicy(&api.FailurePolicy{KeepConnected: true}))
	if r := wait(t, results); r.err != nil {
		t.Fatal(r.err)
	}
	events := func(n int, within time.Duration) {
		t.Helper()
		adaptation.SetPluginRequestTimeout(within)
		for range n {
			large := &api.PodSandbox{Annotations: map[string]string{"large": strings.Repeat("x", 1<<20)}}
			if err := p.a.StopPodSandbox(t.Context(), &api.StopPodSandboxRequest{Pod: large}); err != nil {
				t.Error(err)
			}
		}
	}
	stopped := g.stop()
	events(maxUnsent, 10*time.Millisecond)
	if p.none() {
		t.Error("it is dropped at once")
	}
	<-stopped
	g.Unlock()
	events(1, timeouts.For(20*time.Second))
	if n := plugin.stopped.Load(); p.none() || n == 0 {
		t.Errorf("when it reads again, it is told of %d pods", n)
	}
	stopped = g.stop()
	defer g.Unlock()
	defer func() { <-stopped }()
	events(5*maxUnsent, 10*time.Millisecond)
	if !p.none() {
		t.Error("it is never dropped")
	}
	sending := func() int {
		stacks := make([]byte, 1<<20)
		return strings.Count(string(stacks[:goruntime.Stack(stacks, true)]), "ttrpc.(*Client).dispatch(")
	}
	for late := time.Now().Add(timeouts.For(20 * time.Second)); sending() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%d goroutines send it something", sending())
		}
	}
}

// A hundred connections that say nothing keep no pod from being told of. When they go the next plugin joins, and
// nothing is left.
func TestSilentConnections(t *testing.T) {
	p := plugins(timeouts.For(20*time.Second), timeouts.For(20*time.Second))
	p.cfg.RegistrationTimeout = timeouts.For(time.Minute)
	results := run(t, p, 1)
	before := descriptors(t)
	var silent []net.Conn
	for range 100 {
		conn, err := net.Dial("unix", p.socket.path)
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, conn)
	}
	begin := time.Now()
	release := holdOff(t, p)
	err := p.a.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: &api.PodSandbox{}})
	release()
	if took := time.Since(begin); err != nil || took > p.cfg.RegistrationTimeout/2 {
		t.Errorf("a pod was held up for %v: %v", took, err)
	}
	if !p.none() {
		t.Errorf("%d plugins take part", p.roll.count.Load())
	}
	for _, conn := range silent {
		_ = conn.Close()
	}
	s := join(t, p, &shown{synchronize: func(context.Context) error { return nil }})
	if r := wait(t, results); r.err != nil {
		t.Errorf("the next plugin: %v", r.err)
	}
	s.Stop()
	late := time.Now().Add(timeouts.For(20 * time.Second))
	for descriptors(t) > before {
		if time.Now().After(late) {
			t.Fatalf("%d descriptors are left", descriptors(t)-before)
		}
		time.Sleep(time.Millisecond)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// Who is there is known by name while all are.
func TestRoll(t *testing.T) {
	r := &roll{}
	want := func(n int, names ...string) {
		t.Helper()
		if got, who := r.present(); got != n || fmt.Sprint(who) != fmt.Sprint(names) {
			t.Errorf("%d, %v, wanted %d, %v", got, who, n, names)
		}
	}
	want(0)
	r.RecordPluginInvocation("10-a", "Synchronize", nil)
	r.UpdatePluginCount(1)
	want(1, "10-a")
	r.RecordPluginInvocation("20-b", "Synchronize", nil)
	r.UpdatePluginCount(2)
	want(2, "10-a", "20-b")
	r.RecordPluginInvocation("10-a", "StopContainer", context.DeadlineExceeded)
	r.UpdatePluginCount(1)
	want(1, "20-b")
	r.RecordPluginInvocation("30-c", "Synchronize", context.DeadlineExceeded)
	want(1, "20-b")
	r.UpdatePluginCount(0) // it has left by itself
	want(0)
}
