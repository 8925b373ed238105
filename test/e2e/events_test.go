package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/timeouts"
)

// A listener has the events of one pod, by the kubelet's own client.
type listener struct {
	rig
	stop context.CancelFunc
	end  chan error // how the stream ended
	got  chan *v1.ContainerEventResponse
}

// listen listens to all events from now on.
func (r rig) listen() *listener {
	r.Helper()
	ctx, stop := context.WithCancel(ctx())
	l := &listener{r, stop, make(chan error, 1), make(chan *v1.ContainerEventResponse, 4096)}
	begun := make(chan error, 1)
	go func() {
		l.end <- r.n.Runtime.GetContainerEvents(ctx, l.got, func(c v1.RuntimeService_GetContainerEventsClient) {
			_, err := c.Header()
			begun <- err
		})
	}()
	r.ok(<-begun)
	r.Cleanup(stop)
	return l
}

var eventNames = map[v1.ContainerEventType]string{0: "created", 1: "started", 2: "stopped", 3: "deleted"}

// next waits for the next events about a pod, which must be these. names gives the words for the ids.
func (l *listener) next(pod string, names map[string]string, want ...string) []*v1.ContainerEventResponse {
	l.Helper()
	var got []*v1.ContainerEventResponse
	var words []string
	late := time.After(timeouts.For(time.Minute))
	for len(words) < len(want) {
		select {
		case e := <-l.got:
			if e.PodSandboxStatus.GetId() == pod {
				got, words = append(got, e), append(words, names[e.ContainerId]+" "+eventNames[e.ContainerEventType])
			}
		case <-late:
			l.Fatalf("events %q, wanted %q", words, want)
		}
	}
	if !slices.Equal(words, want) {
		l.Fatalf("events %q, wanted %q", words, want)
	}
	return got
}

// TestEvents follows a pod through its life, as a kubelet with the evented PLEG does.
func TestEvents(t *testing.T) {
	each(t, func(r rig) {
		l, second := r.listen(), r.listen()
		begin := time.Now().UnixNano()
		p := r.pod()
		c := p.start(busybox("main", "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done"))
		c.logged("up")
		short := p.start(busybox("short", "exit 3"))
		short.finish()
		names := map[string]string{p.id: "pod", c.cid: "main", short.cid: "short"}
		up := l.next(p.id, names, "pod created", "pod started", "main created", "main started", "short created",
			"short started", "short stopped")
		if s := up[0].PodSandboxStatus; s.State != v1.PodSandboxState_SANDBOX_READY || s.Network.Ip != p.ip() ||
			s.Metadata.Uid != p.config.Metadata.Uid {
			r.Errorf("the pod's first event: %v", s)
		}
		for i, want := range []int{0, 0, 1, 1, 2, 2, 2} {
			if n := len(up[i].ContainersStatuses); n != want {
				r.Errorf("event %d tells of %d containers, wanted %d", i, n, want)
			}
			if i > 0 && up[i].CreatedAt < up[i-1].CreatedAt || up[i].CreatedAt < begin {
				r.Errorf("event %d is of %d, the one before of %d", i, up[i].CreatedAt, up[max(i-1, 0)].CreatedAt)
			}
		}
		if s := up[3].ContainersStatuses[0]; s.State != v1.ContainerState_CONTAINER_RUNNING || s.StartedAt == 0 {
			r.Errorf("the start tells of %v", s)
		}
		if s := up[6].ContainersStatuses[0]; s.State != v1.ContainerState_CONTAINER_EXITED || s.ExitCode != 3 ||
			s.Reason != "Error" {
			r.Errorf("the end tells of %v", s)
		}
		resp, err := r.n.Runtime.PodSandboxStatus(ctx(), p.id, false)
		r.ok(err)
		if s := resp.ContainersStatuses; len(s) != 2 || s[0].Id != short.cid || s[1].Id != c.cid ||
			resp.Timestamp < up[6].CreatedAt {
			r.Errorf("the status tells at %d of %v, wanted the newest first", resp.Timestamp, s)
		}
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, seconds(60)))
		if e := l.next(p.id, names, "main stopped"); e[0].ContainersStatuses[1].ExitCode != 7 {
			r.Errorf("the stop tells of %v", e[0].ContainersStatuses[1])
		}
		r.ok(r.n.Runtime.RemoveContainer(ctx(), short.cid))
		if e := l.next(p.id, names, "short deleted"); len(e[0].ContainersStatuses) != 1 {
			r.Errorf("the removal tells of %v", e[0].ContainersStatuses)
		}
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
		if e := l.next(p.id, names, "pod stopped"); e[0].PodSandboxStatus.State != v1.PodSandboxState_SANDBOX_NOTREADY {
			r.Errorf("the pod's stop tells of %v", e[0].PodSandboxStatus)
		}
		r.ok(r.n.Runtime.RemovePodSandbox(ctx(), p.id))
		last := l.next(p.id, names, "main deleted", "pod deleted")
		if s := last[1].PodSandboxStatus; s.Id != p.id || s.State != v1.PodSandboxState_SANDBOX_NOTREADY ||
			len(last[1].ContainersStatuses) != 0 {
			r.Errorf("the last event tells of %v", last[1])
		}
		second.next(p.id, names, "pod created", "pod started", "main created", "main started", "short created",
			"short started",
			"short stopped", "main stopped", "short deleted", "pod stopped", "main deleted", "pod deleted")
		second.stop()
		if err := <-second.end; codeOf(err).String() != "Canceled" {
			r.Errorf("a client that goes ends with %v", err)
		}
	})
}

// TestEventsEndWithTheDaemon restarts the daemon under a listener, and has a container end meanwhile.
func TestEventsEndWithTheDaemon(t *testing.T) {
	own(t, func(r rig) {
		p := r.pod()
		c := p.start(busybox("main", "sleep 1000"))
		l := r.listen()
		r.ok(r.n.Stop())
		if err := <-l.end; err == nil {
			r.Error("the stream did not end with the daemon")
		}
		r.ok(r.n.Start())
		l = r.listen()
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
		l.next(p.id, map[string]string{c.cid: "main"}, "main stopped")
	})
}

// TestEventsByHand has the command line show events.
func TestEventsByHand(t *testing.T) {
	own(t, func(r rig) {
		show := func(args ...string) (lines func() string) {
			cmd, out := r.n.Command(append([]string{"events"}, args...)...), &buffer{}
			cmd.Stdout, cmd.Stderr = out, out
			r.ok(r.n.Space.Start(cmd))
			r.Cleanup(func() {
				_ = cmd.Process.Signal(os.Interrupt)
				if err := cmd.Wait(); err != nil {
					r.Errorf("berth events %v: %v", args, err)
				}
			})
			return out.String
		}
		ends := show("--kind", "stopped,deleted", "--container", "main", "-o", "json")
		early := r.pod()
		r.eventually("the one without a head listens", func() bool {
			c := early.start(busybox("main", "true"))
			c.finish()
			r.ok(r.n.Runtime.RemoveContainer(ctx(), c.cid))
			return ends() != ""
		})
		early.remove()
		table := show()
		none := show("--pod", "another")
		r.eventually("all listen", func() bool {
			return strings.HasPrefix(table(), "TIME") && strings.HasPrefix(none(), "TIME")
		})
		p := r.pod()
		c := p.start(busybox("main", "exit 5"))
		c.finish()
		r.ok(r.n.Runtime.RemoveContainer(ctx(), c.cid))
		for _, want := range []string{"created  pod", "started  pod", "created  container  main", "stopped  container  main",
			"code 5 Error", "deleted  container  main"} {
			r.eventually(fmt.Sprintf("%q shows", want), func() bool { return strings.Contains(squeeze(table()), squeeze(want)) })
		}
		shown := func() []string { return grep(ends(), p.id) }
		r.eventually("both ends show", func() bool {
			lines := shown()
			return len(lines) == 2 && strings.HasSuffix(lines[1], "\n")
		})
		for i, line := range shown() {
			var e struct{ ContainerID, ContainerEventType string }
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.ContainerID != c.cid ||
				e.ContainerEventType != []string{"CONTAINER_STOPPED_EVENT", "CONTAINER_DELETED_EVENT"}[i] {
				r.Errorf("line %d: %s (%v)", i, line, err)
			}
		}
		if text := none(); strings.Count(text, "\n") != 1 {
			r.Errorf("events of another pod: %s", text)
		}
		if _, stderr, code := r.berth("events", "--kind", "eaten"); code == 0 ||
			!strings.Contains(stderr, "created, started") {
			r.Errorf("a kind that there is not: %d, %s", code, stderr)
		}
	})
}

func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// buffer is what a command prints, to be read while it runs.
type buffer struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
