package e2e

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/timeouts"
)

// own runs f on a node of its own for each runtime, side by side, because f kills the daemon.
func own(t *testing.T, f func(r rig)) {
	t.Helper()
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			r := ownNode(t, node.Options{Runtime: runtime})
			r.pull("busybox:latest")
			f(r)
		})
	}
}

// pid is the process that a container runs.
func (c *ctr) pid(words string) int {
	c.Helper()
	var found []int
	c.eventually(fmt.Sprintf("one process of the container is %q", words), func() bool {
		found = processesIn(c.cid, words) // a shell says that it is up before it execs
		return len(found) == 1
	})
	return found[0]
}

// TestDaemonKilled kills the daemon under a running pod, a created container and an exited one.
func TestDaemonKilled(t *testing.T) {
	own(t, func(r rig) {
		p := r.pod()
		running := p.start(webapp("running", "count 5ms 1000000"))
		made := p.create(busybox("made", "echo late"))
		over := p.start(busybox("over", "exit 9"))
		running.logged("tick 5\n")
		over.finish()
		pid, before, ip := running.pid("webapp"), running.status(), p.ip()
		r.ok(r.n.Restart())
		if st := p.status(); st.State != v1.PodSandboxState_SANDBOX_READY || st.GetNetwork().GetIp() != ip {
			r.Errorf("the pod is %s at %s, was at %s", st.State, st.GetNetwork().GetIp(), ip)
		}
		st := running.status()
		if st.State != v1.ContainerState_CONTAINER_RUNNING || st.StartedAt != before.StartedAt ||
			running.pid("webapp") != pid {
			r.Errorf("the container is %v, was %v", st, before)
		}
		if st := over.status(); st.State != v1.ContainerState_CONTAINER_EXITED || st.ExitCode != 9 {
			r.Errorf("what had exited is %v", st)
		}
		r.ok(r.n.Runtime.StartContainer(ctx(), made.cid))
		made.finish()
		r.wantText("a container made before and started after", made.text("stdout"), "late")
		r.wantText("exec", running.exec("echo", "hi"), "hi")
		r.ok(r.n.Runtime.StopContainer(ctx(), running.cid, seconds(60)))
		running.wantWholeCount(42)
	})
}

// wantWholeCount checks that a `webapp count` lost no line and exited with the code.
func (c *ctr) wantWholeCount(code int32) {
	c.Helper()
	if st := c.finish(); st.ExitCode != code {
		c.Errorf("exit code %d, wanted %d", st.ExitCode, code)
	}
	lines := strings.Split(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(c.text("stdout")), "bye")), "\n")
	for i, line := range lines {
		if line != "tick "+strconv.Itoa(i+1) {
			c.Fatalf("log line %d is %q", i+1, line)
		}
	}
}

// TestExitWithoutDaemon lets containers exit while no daemon runs.
func TestExitWithoutDaemon(t *testing.T) {
	own(t, func(r rig) {
		p, dir := r.pod(), r.TempDir()
		const wait = "until [ -e /signs/go ]; do sleep 0.1; done; exec /webapp "
		c := p.start(busybox("main", wait+"count 5ms 60 7", mount(dir, "/signs")))
		hungry := p.start(busybox("hungry", wait+"alloc 300", mount(dir, "/signs"), func(c *v1.ContainerConfig) {
			c.Linux.Resources.MemoryLimitInBytes, c.Linux.Resources.MemorySwapLimitInBytes = 64<<20, 64<<20
		}))
		r.ok(r.n.Kill9())
		r.ok(os.WriteFile(dir+"/go", nil, 0o644))
		r.eventually("the monitor has noted both exits", func() bool {
			exits := r.n.Root + "/pods/" + p.id + "/exits/"
			_, err := os.Stat(exits + c.cid)
			_, errHungry := os.Stat(exits + hungry.cid)
			return err == nil && errHungry == nil
		})
		at := time.Now()
		r.ok(r.n.Start())
		st := c.status()
		if st.State != v1.ContainerState_CONTAINER_EXITED || st.ExitCode != 7 || st.Reason != "Error" ||
			st.FinishedAt > at.UnixNano() {
			r.Errorf("status %v; it finished before %d", st, at.UnixNano())
		}
		r.wantText("log", c.text("stdout"), ticks(60))
		if st := hungry.status(); st.ExitCode != 137 || st.Reason != "OOMKilled" {
			r.Errorf("out of memory without a daemon: %v", st)
		}
	})
}

func TestDaemonTerminated(t *testing.T) {
	own(t, func(r rig) {
		c := r.pod().start(webapp("main", "count 5ms 1000000"))
		c.logged("tick 5\n")
		pid := c.pid("webapp")
		r.ok(r.n.Stop())
		if c.pid("webapp") != pid {
			r.Error("the container did not survive SIGTERM of the daemon")
		}
		r.ok(r.n.Start())
		if c.pid("webapp") != pid || c.status().State != v1.ContainerState_CONTAINER_RUNNING {
			r.Errorf("after the restart: %v", c.status())
		}
	})
}

// TestMonitorKilled kills a pod's monitor: its containers go on, and a new monitor takes over.
func TestMonitorKilled(t *testing.T) {
	own(t, func(r rig) {
		p := r.pod()
		c := p.start(webapp("main", "count 5ms 1000000"))
		c.logged("tick 5\n")
		pid := c.pid("webapp")
		r.ok(killProcess(p.monitor()))
		r.eventually("a new monitor answers", func() bool {
			out, _, err := c.tryExec(timeouts.For(5*time.Second), "echo hi")
			return err == nil && out == "hi\n"
		})
		if c.pid("webapp") != pid || c.status().State != v1.ContainerState_CONTAINER_RUNNING {
			r.Errorf("the container is %v", c.status())
		}
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, seconds(60)))
		if st := c.finish(); st.ExitCode != 42 && st.ExitCode != 255 {
			r.Errorf("exit code %d", st.ExitCode)
		}
	})
}

// TestRestartWithManyPods checks that the daemon serves at once, and everything is still there.
func TestRestartWithManyPods(t *testing.T) {
	own(t, func(r rig) {
		var all []*ctr
		for range 6 {
			all = append(all, r.pod(hostNetwork).start(busybox("main", "sleep 1000")))
		}
		r.ok(r.n.Kill9())
		began := time.Now()
		r.ok(r.n.Start())
		if took := time.Since(began); took > timeouts.For(15*time.Second) {
			r.Errorf("ready after %s", took)
		}
		for _, c := range all {
			if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING {
				r.Errorf("a container is %s", st.State)
			}
		}
		r.wantPods(6)
	})
}

// TestInputEndsWithTheDaemon ends the daemon, by either signal, while a client has the input of a container that is
// meant for one: the container sees the end of it under the next daemon. One whose input nobody has had does not.
func TestInputEndsWithTheDaemon(t *testing.T) {
	once := func(c *v1.ContainerConfig) { c.Stdin, c.StdinOnce = true, true }
	own(t, func(r rig) {
		p := r.pod()
		waits := p.start(busybox("waits", "echo on; cat; echo END", once))
		waits.logged("on\n")
		for name, end := range map[string]func() error{"killed": r.n.Kill9, "terminated": r.n.Stop} {
			c := p.start(busybox(name, "cat; echo END", once))
			in, typed := io.Pipe()
			out, ended := &transcript{}, make(chan error, 1)
			address, _ := r.reach(c.attachURL(&v1.AttachRequest{Stdin: true, Stdout: true}))
			go func() {
				ended <- r.stream(ctx(), "websocket-v5", address, remotecommand.StreamOptions{Stdin: in, Stdout: out})
			}()
			_, _ = typed.Write([]byte("hello\n"))
			r.eventually("the input comes back", out.has("hello\n"))
			r.ok(end())
			<-ended
			_ = typed.Close()
			r.ok(r.n.Start())
			if st := c.finish(); st.ExitCode != 0 {
				r.Errorf("%s: exit code %d", name, st.ExitCode)
			}
			c.logged("END\n")
		}
		if text := waits.text(""); strings.Contains(text, "END") {
			r.Errorf("a container saw an end of an input that nobody has had: %q", text)
		}
	})
}
