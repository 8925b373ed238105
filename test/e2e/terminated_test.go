package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/timeouts"
)

// TestTerminatedWithAllOpen ends a daemon that clients hold on to: by a stream of events, an exec session, a
// port-forward, a connection that says nothing, one that said half a request, one kept alive, and a stop that waits. It
// goes at once, the clients are told, and the containers live.
func TestTerminatedWithAllOpen(t *testing.T) {
	own(t, func(r rig) {
		p := r.pod()
		c := p.start(busybox("main", "trap '' TERM; echo up; while :; do sleep 1; done"))
		c.logged("up")
		pid := c.pid("sh")
		events := r.listen()
		session := make(chan error, 1)
		said := &transcript{}
		in, hold := io.Pipe()
		t.Cleanup(func() { _ = hold.Close() })
		address := c.execURL(&v1.ExecRequest{Cmd: sh("echo begun; cat"), Stdin: true, Stdout: true})
		far, _ := r.reach(address)
		go func() {
			session <- r.stream(ctx(), "websocket-v5", far, remotecommand.StreamOptions{Stdin: in, Stdout: said})
		}()
		r.eventually("the session has begun", said.has("begun"))
		port := p.listen("tcp", "127.0.0.1:0", func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
		f := p.forward(port, false)
		echo, err := net.Dial("tcp", f.address)
		r.ok(err)
		t.Cleanup(func() { _ = echo.Close() })
		_, err = echo.Write([]byte("x"))
		r.ok(err)
		_, err = io.ReadFull(echo, make([]byte, 1))
		r.ok(err)
		const half = "GET /exec/none HTTP/1.1\r\nHost: x\r\n"
		for _, text := range []string{"", half, half + "\r\n"} {
			r.hold(address, text)
		}
		stop := make(chan error, 1)
		go func() {
			stop <- r.within(timeouts.For(time.Minute), func(ctx context.Context) error {
				return r.n.Runtime.StopContainer(ctx, c.cid, 50)
			})
		}()
		r.eventually("the stop is under way", func() bool {
			return strings.Contains(r.mustBerth("debug", "lanes"), "stop of")
		})

		began := time.Now()
		r.ok(r.n.Stop())
		t.Logf("gone after %s", time.Since(began))
		if took := time.Since(began); took > timeouts.For(10*time.Second) {
			r.Errorf("the daemon was gone %s after SIGTERM: it has waited for somebody", took)
		}
		for what, ended := range map[string]chan error{
			"exec": session, "stop": stop, "events": events.end, "port-forward": f.ended,
		} {
			select {
			case err := <-ended:
				t.Logf("%s: %v", what, err)
				if err == nil && what != "port-forward" {
					r.Errorf("%s ended as if all were done", what)
				}
			case <-time.After(timeouts.For(10 * time.Second)):
				r.Errorf("%s: its client was not told", what)
			}
		}
		if c.pid("sh") != pid {
			r.Error("the container did not survive")
		}
		r.ok(r.n.Start())
		if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING {
			r.Errorf("after the restart: %v", st)
		}
		r.wantText("exec", c.exec("echo", "hi"), "hi")
	})
}

// TestTerminatedInAStart ends a daemon in the middle of a start and of an exec, as an upgrade does in a preStop hook:
// both come to their end, and what the exec writes meanwhile does not end it. An exec whose caller goes away is killed.
func TestTerminatedInAStart(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			program, err := exec.LookPath(runtime)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			r := ownNode(t, node.Options{Runtime: runtime, Tables: fmt.Sprintf("[runtimes.slow]\npath = %q\n", dir+"/slow")})
			r.script(dir, "slow", "case \"$*\" in *\" start \"*) [ -e $0.begin ] && { : >$0.here; sleep 2; };; esac\n"+
				"exec "+program+" \"$@\"")
			r.pull("busybox:latest")
			p := r.podOf("slow")
			main := p.start(busybox("main", "sleep 1000"))

			caller, goAway := context.WithCancel(ctx())
			gone := make(chan error, 1)
			go func() {
				_, _, err := r.n.Runtime.ExecSync(caller, main.cid, sh("sleep 4201; touch /tmp/gone"), 0)
				gone <- err
			}()
			r.eventually("the exec runs", func() bool { return len(processesIn(main.cid, "sleep 4201")) > 0 })
			goAway()
			if err := <-gone; err == nil {
				t.Error("the exec whose caller went away succeeded")
			}
			r.eventually("the exec whose caller went away is killed", func() bool {
				return len(processesIn(main.cid, "sleep 4201")) == 0
			})

			hook := make(chan error, 1)
			go func() {
				_, _, err := main.tryExec(0, "echo begun; sleep 4; echo goes on; sleep 0.2; touch /tmp/done")
				hook <- err
			}()
			r.eventually("the hook runs", func() bool { return len(processesIn(main.cid, "goes on")) > 0 })
			r.ok(os.WriteFile(dir+"/slow.begin", nil, 0o644))
			c := p.create(busybox("begins", "echo up; sleep 1000"))
			start := make(chan error, 1)
			go func() { start <- r.n.Runtime.StartContainer(ctx(), c.cid) }()
			r.eventually("the start is under way", func() bool { _, err := os.Stat(dir + "/slow.here"); return err == nil })
			r.ok(r.n.Stop())
			for what, ended := range map[string]chan error{"hook": hook, "start": start} {
				if err := <-ended; err == nil {
					t.Errorf("the %s has ended before its daemon: this shows nothing", what)
				}
			}
			r.ok(r.n.Start())
			r.eventually("the container runs", func() bool { return c.status().State == v1.ContainerState_CONTAINER_RUNNING })
			c.logged("up")
			r.eventually("the hook comes to its end", func() bool {
				out, _, err := main.tryExec(timeouts.For(5*time.Second), "ls /tmp")
				return err == nil && out == "done\n"
			})
		})
	}
}

// hold opens a connection to the server of an address, says text on it and leaves it open until the test is over. What
// is a whole request is answered first.
func (r rig) hold(address, text string) {
	r.Helper()
	far, _ := r.reach(address)
	req, err := http.NewRequest(http.MethodGet, far, nil)
	r.ok(err)
	conn, err := net.Dial("tcp", req.URL.Host)
	r.ok(err)
	r.Cleanup(func() { _ = conn.Close() })
	if text == "" {
		return
	}
	_, err = fmt.Fprint(conn, text)
	r.ok(err)
	if strings.HasSuffix(text, "\r\n\r\n") {
		resp, err := http.ReadResponse(bufio.NewReader(conn), req)
		r.ok(err)
		_ = resp.Body.Close()
	}
}
