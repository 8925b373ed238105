package restart

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/sandbox"
)

// passing makes a ready pod of one container that runs, has the pod's name and is removed at its end.
func (n *node) passing(name, logs string, labels map[string]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m, err := sandbox.NewPodConfig(&runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "berth", Uid: "u"}, Labels: labels,
		LogDirectory: logs,
	})
	if err != nil {
		n.t.Error(err)
	}
	pod := sandbox.ID("pod-" + name)
	n.records[pod] = &sandbox.Record{ID: pod, State: sandbox.Ready, Config: m}
	n.passingIn(pod, name, "true")
}

// passingIn adds a container that runs to a pod.
func (n *node) passingIn(pod sandbox.ID, name, remove string) {
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, LogPath: name + ".log",
		Annotations: map[string]string{annotation.KeyRemove: remove},
	}
	n.add(pod, sandbox.ID(name), cfg)
	n.edit(sandbox.ID(name), func(c *sandbox.Container) { c.State, c.StartedAt = sandbox.Running, time.Now() })
}

func byHand(name string) map[string]string { return map[string]string{sandbox.RunLabel: name} }

// logsOf makes a directory of logs.
func logsOf(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.MkdirAll(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"a.log", "b.log", "d/f"} {
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

// TestRemovedAtItsEnd removes a pod when the container has ended that it was made for, a little later, with its logs.
func TestRemovedAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, logs := newNode(t), logsOf(t, "p_u")
		n.passing("p", logs, byHand("p"))
		keep(t, n, func() {
			n.end("p", 7)
			time.Sleep(removeDelay - time.Millisecond)
			n.wantCalls()
			time.Sleep(time.Hour)
			n.wantCalls("stop pod-p at 2s", "remove pod-p at 2s")
		})
		if !gone(logs) {
			t.Error("the logs are there")
		}
	})
}

// TestRemovedWhereNobodyElseDoes removes what ran in the foreground of a command that was left or killed, a minute
// after its end, and what was removed by then not again.
func TestRemovedWhereNobodyElseDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, logs := newNode(t), logsOf(t, "p_u")
		n.passing("p", logs, byHand("p"))
		n.passing("q", logsOf(t, "q_u"), byHand("q"))
		n.hold(func() {
			for _, id := range []sandbox.ID{"p", "q"} {
				n.edit(id, func(c *sandbox.Container) { c.Config.Get().Annotations[annotation.KeyRemove] = "later" })
			}
		})
		keep(t, n, func() {
			n.end("p", 7)
			n.end("q", 0)
			time.Sleep(leftDelay - time.Millisecond)
			n.wantCalls()
			n.hold(func() { delete(n.records, "pod-q") })
			time.Sleep(time.Hour)
			n.wantCalls("stop pod-p at 60s", "remove pod-p at 60s")
		})
		if !gone(logs) {
			t.Error("the logs are there")
		}
	})
}

// TestRemovedByTheNextDaemon finds what has ended without one.
func TestRemovedByTheNextDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, logs := newNode(t), logsOf(t, "p_u")
		n.passing("p", logs, byHand("p"))
		n.passing("lives", logsOf(t, "lives_u"), byHand("lives"))
		n.hold(func() { n.edit("p", ended(0)) })
		keep(t, n, func() {
			time.Sleep(time.Hour)
			n.wantCalls("stop pod-p at 2s", "remove pod-p at 2s")
		})
	})
}

// TestRemovedAlone removes a container from a pod that was not made for it, and no other.
func TestRemovedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, logs := newNode(t), logsOf(t, "p_u")
		n.passing("p", logs, byHand("p"))
		n.hold(func() {
			n.edit("p", func(c *sandbox.Container) {
				c.Config.Get().Annotations[annotation.KeyRemove] = "false"
			})
			n.passingIn("pod-p", "b", "true")
			n.passingIn("pod-p", "c", "false")
		})
		keep(t, n, func() {
			n.end("c", 0)
			n.end("b", 0)
			n.end("p", 0)
			time.Sleep(time.Hour)
			n.wantCalls("remove b at 2s")
		})
		if !gone(filepath.Join(logs, "b.log")) || gone(filepath.Join(logs, "a.log")) {
			t.Error("its log is there, or that of another is not")
		}
	})
}

// TestNotRemoved is about pods of others, and words that are none.
func TestNotRemoved(t *testing.T) {
	for name, make := range map[string]func(n *node){
		"a kubelet's": func(n *node) { n.passing("p", "/logs/p_u", nil) },
		"a kubelet's with the label": func(n *node) {
			n.passing("p", "/logs/p_u", map[string]string{sandbox.RunLabel: "p", "io.kubernetes.pod.uid": "u"})
		},
		"another word": func(n *node) {
			n.passing("p", "/logs/p_u", byHand("p"))
			n.edit("p", func(c *sandbox.Container) { c.Config.Get().Annotations[annotation.KeyRemove] = "yes" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				make(n)
				keep(t, n, func() {
					n.end("p", 0)
					time.Sleep(time.Hour)
					n.wantCalls()
				})
			})
		})
	}
}

// TestLogsOfOthersStay has pods whose directory of logs is not one of their own.
func TestLogsOfOthersStay(t *testing.T) {
	for _, name := range []string{"other_u", "p_other", "p"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, logs := newNode(t), logsOf(t, name)
				n.passing("p", logs, byHand("p"))
				keep(t, n, func() {
					n.end("p", 0)
					time.Sleep(time.Hour)
					n.wantCalls("stop pod-p at 2s", "remove pod-p at 2s")
				})
				if gone(filepath.Join(logs, "a.log")) {
					t.Errorf("%s was removed", logs)
				}
			})
		})
	}
}

// TestCannotBeRemoved tries again until it can, and says so once.
func TestCannotBeRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.passing("p", logsOf(t, "p_u"), byHand("p"))
		log := keep(t, n, func() {
			n.hold(func() { n.fail = func(string) error { return errors.New("the disk hangs") } })
			n.end("p", 0)
			time.Sleep(time.Minute)
			n.hold(func() {
				if len(n.calls) != 5 {
					t.Errorf("in a minute it was tried %d times: %v", len(n.calls), n.calls)
				}
				n.fail, n.calls = nil, nil
			})
			time.Sleep(time.Minute)
			n.wantCalls("stop pod-p at 62s", "remove pod-p at 62s")
		})
		if strings.Count(log, "the disk hangs") != 1 {
			t.Errorf("it says:\n%s", log)
		}
	})
}

// slowly takes a second for each stop, and counts how many there are at a time.
type slowly struct {
	*node
	now, most atomic.Int32
}

func (s *slowly) Stop(ctx context.Context, id sandbox.ID) error {
	n := s.now.Add(1)
	defer s.now.Add(-1)
	for m := s.most.Load(); n > m && !s.most.CompareAndSwap(m, n); m = s.most.Load() {
	}
	time.Sleep(time.Second)
	return s.node.Stop(ctx, id)
}

// TestManyAreRemoved has many end at once, such as by a restart of the machine: they go a few at a time.
func TestManyAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &slowly{node: newNode(t)}
		const many = 200
		for i := range many {
			name := fmt.Sprint("p", i)
			n.passing(name, filepath.Join("/no/such", name+"_u"), byHand(name))
			n.hold(func() { n.edit(sandbox.ID(name), ended(255)) })
		}
		ctx, stop := context.WithCancel(t.Context())
		k := &Keeper{Pods: n, Catalog: n, Watch: func() Watch { return n }, Log: slog.New(slog.DiscardHandler)}
		done := make(chan struct{})
		go func() { k.Run(ctx); close(done) }()
		time.Sleep(time.Minute)
		if most := n.most.Load(); most != atOnce || len(n.List()) != 0 {
			t.Errorf("%d at a time, %d are left", most, len(n.List()))
		}
		stop()
		<-done
	})
}
