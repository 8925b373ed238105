package restart

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/sandbox"
)

// node has pods in memory, and tells of what ends.
type node struct {
	t *testing.T

	mu      sync.Mutex
	records map[sandbox.ID]*sandbox.Record
	calls   []string
	watch   chan *sandbox.Record
	adopted chan struct{}
	takes   time.Duration // to run a pod
	fail    func(call string) error
	after   func(call string) // called when one was done
}

func newNode(t *testing.T) *node {
	return &node{t: t, records: map[sandbox.ID]*sandbox.Record{}, watch: make(chan *sandbox.Record, 100)}
}

// hold has fn do something to the records while nobody reads them.
func (n *node) hold(fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fn()
}

func (n *node) call(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	n.calls = append(n.calls, fmt.Sprintf("%s at %ds", text, int(time.Since(began).Seconds())))
	if n.fail != nil {
		return n.fail(text)
	}
	return nil
}

func (n *node) done(text string) {
	if n.after != nil {
		n.after(text)
	}
}

// began is when the clock of a bubble begins.
var began = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (n *node) List() (all []*sandbox.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.records {
		all = append(all, r)
	}
	return all
}

func (n *node) Get(id sandbox.ID) (*sandbox.Record, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.records[id]; r != nil {
		return r, nil
	}
	return nil, sandbox.NotFound("pod sandbox", id)
}

func (n *node) Run(_ context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (sandbox.ID, error) {
	time.Sleep(n.takes)
	n.mu.Lock()
	defer n.mu.Unlock()
	id := sandbox.ID(fmt.Sprint(cfg.Metadata.Name, cfg.Metadata.Attempt))
	if err := n.call("run %s", id); err != nil {
		return "", err
	}
	m, err := sandbox.NewPodConfig(cfg)
	n.records[id] = &sandbox.Record{ID: id, State: sandbox.Ready, Handler: handler, Config: m}
	n.done("run " + string(id))
	return id, err
}

func (n *node) Create(_ context.Context, pod sandbox.ID, cfg *runtimeapi.ContainerConfig) (sandbox.ID, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := sandbox.ID(fmt.Sprint(cfg.Metadata.Name, cfg.Metadata.Attempt))
	if err := n.call("create %s in %s", id, pod); err != nil {
		return "", err
	}
	n.add(pod, id, cfg)
	n.done("create " + string(id))
	return id, nil
}

func (n *node) add(pod, id sandbox.ID, cfg *runtimeapi.ContainerConfig) {
	m, err := sandbox.NewContainerConfig(cfg)
	if err != nil {
		n.t.Error(err)
	}
	r := n.records[pod].Clone()
	made := &sandbox.Container{ID: id, State: sandbox.Created, CreatedAt: time.Now(), Config: m}
	r.Containers = append(r.Containers, made)
	n.records[pod] = r
}

func (n *node) Start(_ context.Context, id sandbox.ID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.call("start %s", id); err != nil {
		return err
	}
	n.edit(id, func(c *sandbox.Container) { c.State, c.StartedAt = sandbox.Running, time.Now() })
	return nil
}

func (n *node) Stop(_ context.Context, id sandbox.ID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.call("stop %s", id)
}

func (n *node) Remove(_ context.Context, id sandbox.ID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.records, id)
	return n.call("remove %s", id)
}

func (n *node) RemoveContainer(_ context.Context, id sandbox.ID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.of(id).Clone()
	r.Containers = slices.DeleteFunc(r.Containers, func(c *sandbox.Container) bool { return c.ID == id })
	n.records[r.ID] = r
	return n.call("remove %s", id)
}

func (n *node) of(ctr sandbox.ID) *sandbox.Record {
	for _, r := range n.records {
		if r.Container(ctr) != nil {
			return r
		}
	}
	n.t.Fatalf("there is no container %s", ctr)
	return nil
}

func (n *node) edit(ctr sandbox.ID, fn func(*sandbox.Container)) {
	r := n.of(ctr).Clone()
	if err := r.Edit(ctr, func(c *sandbox.Container) error { fn(c); return nil }); err != nil {
		n.t.Error(err)
	}
	n.records[r.ID] = r
}

// pod makes a ready pod of one container, which runs.
func (n *node) pod(name, policy string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m, err := sandbox.NewPodConfig(&runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "berth", Uid: "u"},
		Labels:   map[string]string{sandbox.RunLabel: name},
	})
	if err != nil {
		n.t.Error(err)
	}
	id := sandbox.ID(name + "0")
	n.records[id] = &sandbox.Record{ID: id, State: sandbox.Ready, Config: m}
	n.join(id, "c"+strings.TrimPrefix(name, "p"), policy)
}

// join adds a running container to a pod.
func (n *node) join(pod sandbox.ID, name, policy string) {
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, LogPath: name + ".log", Annotations: map[string]string{},
	}
	if policy != "" {
		cfg.Annotations[annotation.KeyRestart] = policy
	}
	n.add(pod, sandbox.ID(name+"0"), cfg)
	n.edit(sandbox.ID(name+"0"), func(c *sandbox.Container) { c.State, c.StartedAt = sandbox.Running, time.Now() })
}

// ended makes a container one that has ended now.
func ended(code int32) func(*sandbox.Container) {
	return func(c *sandbox.Container) { c.State, c.ExitCode, c.FinishedAt = sandbox.Exited, code, time.Now() }
}

// end ends a container, and tells of it.
func (n *node) end(id sandbox.ID, code int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.edit(id, ended(code))
	n.watch <- n.of(id)
}

// endPod ends a pod, with what is in it, and tells of it.
func (n *node) endPod(id sandbox.ID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.records[id].Containers {
		if c.State != sandbox.Exited {
			n.edit(c.ID, ended(255))
		}
	}
	r := n.records[id].Clone()
	r.State = sandbox.Stopped
	n.records[id] = r
	n.watch <- r
}

func (n *node) Next(ctx context.Context) (*sandbox.Record, error) {
	select {
	case r := <-n.watch:
		if r == nil {
			return nil, errors.New("ends were missed")
		}
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *node) Close() {}

// keep runs a keeper until the test has done its part.
func keep(t *testing.T, n *node, fn func()) (log string) {
	t.Helper()
	var text strings.Builder
	ctx, stop := context.WithCancel(t.Context())
	k := &Keeper{
		Pods: n, Catalog: n, Watch: func() Watch { return n }, Adopted: n.adopted,
		Log: slog.New(slog.NewTextHandler(&text, nil)),
	}
	done := make(chan struct{})
	go func() { k.Run(ctx); close(done) }()
	synctest.Wait()
	fn()
	stop()
	<-done
	if len(k.tended) != 0 && ctx.Err() == nil {
		t.Errorf("pods are tended still: %v", k.tended)
	}
	return text.String()
}

func (n *node) wantCalls(want ...string) {
	n.t.Helper()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Equal(n.calls, want) {
		n.t.Errorf("calls:\n%s\nwant:\n%s", strings.Join(n.calls, "\n"), strings.Join(want, "\n"))
	}
	n.calls = nil
}

// TestPolicies ends a container with each policy and code.
func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		policy string
		code   int32
		again  bool
	}{
		{"", 1, false}, {"no", 1, false}, {"never", 1, false}, {"on-failure", 0, false}, {"on-failure", 1, true},
		{"on-failure:3", 1, true}, {"unless-stopped", 0, true}, {"always", 0, true}, {"always", 137, true},
	} {
		t.Run(fmt.Sprint(c.policy, " ", c.code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.pod("p", c.policy)
				keep(t, n, func() {
					n.end("c0", c.code)
					if c.again {
						n.wantCalls("create c1 in p0 at 0s", "start c1 at 0s")
					} else {
						n.wantCalls()
					}
				})
			})
		})
	}
}

// TestBackoff has a container end at once, again and again, then run for long.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.pod("p", "always")
		keep(t, n, func() {
			at := 0
			for i, d := range []int{0, 10, 20, 40, 80, 160, 300, 300} {
				n.end(sandbox.ID(fmt.Sprint("c", i)), 1)
				time.Sleep(time.Duration(d) * time.Second)
				at += d
				want := []string{
					fmt.Sprintf("create c%d in p0 at %ds", i+1, at), fmt.Sprintf("start c%d at %ds", i+1, at),
				}
				if i > 0 {
					want = append(want, fmt.Sprintf("remove c%d at %ds", i-1, at))
				}
				n.wantCalls(want...)
			}
			time.Sleep(steadyAfter)
			n.end("c8", 1)
			n.wantCalls("create c9 in p0 at 1510s", "start c9 at 1510s", "remove c7 at 1510s")
			n.end("c9", 1)
			time.Sleep(11 * time.Second)
			n.wantCalls("create c10 in p0 at 1520s", "start c10 at 1520s", "remove c8 at 1520s")
		})
	})
}

// TestNextDaemon goes on where another keeper ended: in the middle of a pause, and between create and start.
func TestNextDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.pod("p", "on-failure:2")
		keep(t, n, func() {
			n.end("c0", 1)
			synctest.Wait()
			n.end("c1", 1)
			time.Sleep(5 * time.Second)
			n.wantCalls("create c1 in p0 at 0s", "start c1 at 0s")
		})
		n.fail = func(call string) error { // no keeper runs
			if strings.HasPrefix(call, "start") {
				return context.Canceled
			}
			return nil
		}
		keep(t, n, func() {
			time.Sleep(6 * time.Second)
			n.wantCalls("create c2 in p0 at 10s", "start c2 at 10s", "remove c0 at 10s")
		})
		n.fail = nil
		keep(t, n, func() {
			n.wantCalls("start c2 at 11s")
			n.end("c2", 1) // for the last time
			time.Sleep(time.Hour)
			n.wantCalls()
		})
	})
}

// TestNextDaemonOfAStart goes on with a start that the last daemon did not live to see end.
func TestNextDaemonOfAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.pod("p", "always")
		n.fail = func(call string) error {
			if strings.HasPrefix(call, "start") {
				n.edit("c1", func(c *sandbox.Container) { c.State = sandbox.Starting })
				return context.Canceled
			}
			return nil
		}
		keep(t, n, func() {
			n.end("c0", 1)
			time.Sleep(time.Second)
			n.wantCalls("create c1 in p0 at 0s", "start c1 at 0s")
		})
		n.fail = nil
		keep(t, n, func() {
			time.Sleep(time.Second)
			n.wantCalls("start c1 at 1s")
		})
	})
}

// TestStopped leaves what somebody has stopped, before its end, in the pause, and while it is being made.
func TestStopped(t *testing.T) {
	stop := func(n *node, id sandbox.ID) { n.edit(id, func(c *sandbox.Container) { c.StopAsked = true }) }
	for name, c := range map[string]struct {
		do   func(n *node)
		want []string
	}{
		"before its end": {func(n *node) {
			n.hold(func() { stop(n, "c0") })
			n.end("c0", 1)
			time.Sleep(time.Hour)
		}, nil},
		"in the pause": {func(n *node) {
			n.end("c0", 1)
			synctest.Wait()
			n.end("c1", 1)
			time.Sleep(5 * time.Second)
			n.hold(func() { stop(n, "c1") })
			time.Sleep(time.Hour)
		}, []string{"create c1 in p0 at 0s", "start c1 at 0s"}},
		"with its pod": {func(n *node) {
			n.hold(func() { n.records["p0"].StopAsked = true })
			n.endPod("p0")
			time.Sleep(time.Hour)
		}, nil},
		"while it is made": {func(n *node) {
			n.after = func(call string) { // with mu held
				if call == "create c1" {
					stop(n, "c0")
				}
			}
			n.end("c0", 1)
			synctest.Wait()
			n.hold(func() { stop(n, "c0") })
			time.Sleep(time.Hour)
		}, []string{"create c1 in p0 at 0s", "remove c1 at 0s"}},
		"removed while it is made": {func(n *node) {
			n.after = func(call string) { // with mu held
				if call == "create c1" {
					n.edit("c0", func(c *sandbox.Container) { c.State = sandbox.Removing })
				}
			}
			n.end("c0", 1)
			time.Sleep(time.Hour)
		}, []string{"create c1 in p0 at 0s", "remove c1 at 0s"}},
		"while its pod is made": {func(n *node) {
			n.after = func(call string) { // with mu held
				if call == "run p1" {
					r := n.records["p0"].Clone()
					r.StopAsked = true
					n.records["p0"] = r
				}
			}
			n.endPod("p0")
			time.Sleep(time.Hour)
		}, []string{"run p1 at 0s", "remove p1 at 0s"}},
		"being removed while its pod is made": {func(n *node) {
			n.after = func(call string) { // with mu held
				if call == "run p1" {
					r := n.records["p0"].Clone()
					r.State = sandbox.Removing
					n.records["p0"] = r
				}
			}
			n.endPod("p0")
			time.Sleep(time.Hour)
		}, []string{"run p1 at 0s", "remove p1 at 0s"}},
		"removed while its pod is made": {func(n *node) {
			n.after = func(call string) { // with mu held
				if call == "run p1" {
					delete(n.records, "p0")
				}
			}
			n.endPod("p0")
			time.Sleep(time.Hour)
		}, []string{"run p1 at 0s", "remove p1 at 0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.pod("p", "always")
				keep(t, n, func() {
					c.do(n)
					n.wantCalls(c.want...)
				})
			})
		})
	}
}

// TestPodEnded makes a new sandbox for all of a pod that starts again, once the first of it is due.
func TestPodEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.pod("p", "always")
		n.join("p0", "d", "on-failure")
		n.join("p0", "e", "")
		keep(t, n, func() {
			n.endPod("p0")
			n.wantCalls("run p1 at 0s", "create c1 in p1 at 0s", "start c1 at 0s", "create d1 in p1 at 0s",
				"start d1 at 0s", "remove p0 at 0s")
		})
	})
}

// TestCannotBeMade tries again until it can, says so once, and is not in a hurry.
func TestCannotBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.pod("p", "always")
		log := keep(t, n, func() {
			n.hold(func() { n.fail = func(string) error { return errors.New("no network yet") } })
			n.endPod("p0")
			time.Sleep(time.Minute - time.Second)
			n.hold(func() {
				if len(n.calls) != 6 {
					t.Errorf("in a minute it was tried %d times", len(n.calls))
				}
				n.fail, n.calls = nil, nil
			})
			time.Sleep(2 * time.Second)
			n.wantCalls("run p1 at 60s", "create c1 in p1 at 60s", "start c1 at 60s", "remove p0 at 60s")
		})
		if strings.Count(log, "no network yet") != 1 {
			t.Errorf("it says:\n%s", log)
		}
	})
}

// TestMissedEnds looks at all pods again.
func TestMissedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.pod("p", "always")
		keep(t, n, func() {
			n.hold(func() {
				n.edit("c0", ended(1))
			})
			n.watch <- nil
			n.wantCalls("create c1 in p0 at 0s", "start c1 at 0s")
		})
	})
}

// TestAdopted has a pod that was stopped start again, since the machine has restarted: that is no end, and nobody tells
// of it.
func TestAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.pod("p", "always")
		n.adopted = make(chan struct{})
		n.hold(func() {
			n.edit("c0", ended(0))
			r := n.records["p0"].Clone()
			r.State, r.StopAsked = sandbox.Stopped, true
			n.records["p0"] = r
		})
		keep(t, n, func() {
			n.wantCalls()
			n.hold(func() {
				r := n.records["p0"].Clone()
				if err := r.StopIsOver(); err != nil {
					t.Error(err)
				}
				n.records["p0"] = r
			})
			close(n.adopted)
			n.wantCalls("run p1 at 0s", "create c1 in p1 at 0s", "start c1 at 0s", "remove p0 at 0s")
		})
	})
}

// TestManyPods has two hundred pods come back after a reboot, few at the same time.
func TestManyPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, most, now := newNode(t), 0, 0
		n.fail = func(call string) error {
			if strings.HasPrefix(call, "run") {
				now++
				most = max(most, now)
				n.mu.Unlock()
				time.Sleep(time.Second)
				n.mu.Lock()
				now--
			}
			return nil
		}
		for i := range 200 {
			name := fmt.Sprint("p", i, "-")
			n.pod(name, "always")
			r := n.records[sandbox.ID(name+"0")].Clone()
			r.State = sandbox.Stopped
			n.records[r.ID] = r
			n.edit(r.Containers[0].ID, ended(255))
		}
		keep(t, n, func() { time.Sleep(201 * time.Second / atOnce) })
		n.calls = slices.DeleteFunc(n.calls, func(c string) bool { return !strings.HasPrefix(c, "run") })
		if len(n.calls) != 200 || most != atOnce {
			t.Errorf("%d pods were made, at most %d at the same time", len(n.calls), most)
		}
	})
}
