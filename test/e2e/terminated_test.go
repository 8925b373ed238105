package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

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
