package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/limit"
	"berth/test/node"
	"berth/test/timeouts"
)

func TestExec(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 1000", func(c *v1.ContainerConfig) {
			c.Linux.SecurityContext.RunAsUsername = "app"
		}))
		much := bytes.Repeat([]byte("0123456789abcde\n"), 1<<18) // 4 MiB
		for name := range transports {
			r.sub(name, func(r rig) {
				c := &ctr{c.on(r), c.cid, c.log}
				out, errs := &transcript{}, &transcript{}
				address, _ := r.reach(c.execURL(&v1.ExecRequest{Cmd: sh("id -u; echo b >&2; exit 7"), Stdout: true, Stderr: true}))
				err := r.stream(ctx(), name, address, remotecommand.StreamOptions{Stdout: out, Stderr: errs})
				var code exec.CodeExitError
				if !errors.As(err, &code) || code.Code != 7 || out.String() != "1000\n" || errs.String() != "b\n" {
					r.Errorf("%v, stdout %q, stderr %q", err, out, errs)
				}
				if name == "websocket-v4" {
					return // its clients cannot end their input
				}
				out = &transcript{}
				address, _ = r.reach(c.execURL(&v1.ExecRequest{Cmd: sh("cat; echo END"), Stdin: true, Stdout: true}))
				r.ok(r.stream(ctx(), name, address, remotecommand.StreamOptions{Stdin: bytes.NewReader(much), Stdout: out}))
				if got := out.String(); got != string(much)+"END\n" {
					r.Errorf("of %d bytes %d came back, the last of them %q", len(much), len(got), got[max(0, len(got)-20):])
				}
			})
		}
		_, err := r.n.Runtime.Exec(ctx(),
			&v1.ExecRequest{ContainerId: c.cid, Cmd: sh("true"), Stdout: true, Stderr: true, Tty: true})
		r.wantCode(err, codes.InvalidArgument, "terminal")
		_, err = r.n.Runtime.Exec(ctx(), &v1.ExecRequest{ContainerId: c.cid, Cmd: sh("true")})
		r.wantCode(err, codes.InvalidArgument, "stdin")
		_, err = r.n.Runtime.Exec(ctx(), &v1.ExecRequest{ContainerId: c.cid, Stdout: true})
		r.wantCode(err, codes.InvalidArgument, "no command")
		address, _ := r.reach(c.execURL(&v1.ExecRequest{Cmd: []string{"/no/such"}, Stdout: true}))
		if err := r.stream(ctx(), "spdy", address, remotecommand.StreamOptions{Stdout: io.Discard}); err == nil ||
			!strings.Contains(err.Error(), "/no/such") {
			r.Errorf("a program that is not there: %v", err)
		}
	})
}

// sizes is a terminal whose size changes when the test says so.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	if size, ok := <-s; ok {
		return &size
	}
	return nil
}

func TestExecWithTerminal(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 1000"))
		for name := range transports {
			r.sub(name, func(r rig) {
				c := &ctr{c.on(r), c.cid, c.log}
				in, typed := io.Pipe()
				size, out, ended := make(sizes, 1), &transcript{}, make(chan error, 1)
				address, _ := r.reach(
					c.execURL(&v1.ExecRequest{Cmd: sh("echo $TERM; tty; while read x; do stty size; done; exit 3"), Stdin: true,
						Stdout: true, Tty: true}))
				size <- remotecommand.TerminalSize{Width: 101, Height: 33}
				go func() {
					ended <- r.stream(ctx(), name, address,
						remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: size})
				}()
				r.eventually("it has a terminal", out.has("xterm\r\n/dev/pts/"))
				for _, want := range []string{"33 101\r\n", "24 80\r\n"} {
					r.eventually("the terminal has "+want, func() bool {
						_, _ = typed.Write([]byte("\n"))
						time.Sleep(20 * time.Millisecond)
						return strings.Contains(out.String(), want)
					})
					if want == "33 101\r\n" {
						size <- remotecommand.TerminalSize{Width: 80, Height: 24}
					}
				}
				close(size)
				_, _ = typed.Write([]byte{4})
				var code exec.CodeExitError
				if err := <-ended; !errors.As(err, &code) || code.Code != 3 {
					r.Errorf("it ends with %v", err)
				}
			})
		}
	})
}

// TestExecWhoseClientVanishes wants nothing to be left of it: neither its process, nor anything in the daemon.
func TestExecWhoseClientVanishes(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 1000000"))
		for i, x := range []struct {
			name, transport string
			req             *v1.ExecRequest
			input           io.Reader // sent before
			gone            time.Duration
		}{
			{"silent", "spdy", &v1.ExecRequest{Stdout: true}, nil, 30 * time.Second},
			// A hang-up ends it, not the kill after ten seconds.
			{"terminal", "spdy", &v1.ExecRequest{Stdin: true, Stdout: true, Tty: true}, nil, 9 * time.Second},
			{"terminal over websocket", "websocket-v5", &v1.ExecRequest{Stdin: true, Stdout: true, Tty: true}, nil,
				9 * time.Second},
			// So much that the daemon reads no more, and so little that the kernel has the rest with the end behind it.
			{"with input that nobody reads", "spdy", &v1.ExecRequest{Stdin: true, Stdout: true},
				bytes.NewReader(make([]byte, limit.SessionInput.Limit+140<<10)), 40 * time.Second},
		} {
			r.sub(x.name, func(r rig) {
				r.Parallel()
				c := &ctr{c.on(r), c.cid, c.log}
				words := fmt.Sprintf("sleep 98%d", i)
				x.req.Cmd = sh("echo on; " + words + " & wait; " + words)
				out, in := &transcript{}, x.input
				if in == nil {
					in, _ = io.Pipe()
				}
				address, relay := r.reach(c.execURL(x.req))
				o := remotecommand.StreamOptions{Stdout: out, Tty: x.req.Tty}
				if x.req.Stdin {
					o.Stdin = in
				}
				ended := make(chan error, 1)
				go func() { ended <- r.stream(ctx(), x.transport, address, o) }()
				r.eventually("it runs", out.has("on"))
				if x.input != nil {
					time.Sleep(300 * time.Millisecond) // until nothing moves any more
				}
				relay.cut()
				began := time.Now()
				for countProcesses(words, c.cid) > 0 {
					if time.Since(began) > x.gone {
						r.Fatalf("it still runs after %v", x.gone)
					}
					time.Sleep(10 * time.Millisecond)
				}
				<-ended
			})
		}
	})
}

func TestAttach(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		for name := range transports {
			r.sub(name, func(r rig) {
				c := p.on(r).create(busybox("main-"+name, "echo first; cat; echo END; echo err >&2", func(c *v1.ContainerConfig) {
					c.Stdin, c.StdinOnce = true, true
				}))
				outs := []*transcript{{}, {}, {}}
				errs, ended := &transcript{}, make(chan error, len(outs))
				in, typed := io.Pipe()
				before := c.pipes()
				for i, out := range outs {
					req, o := &v1.AttachRequest{Stdout: true, Stderr: true},
						remotecommand.StreamOptions{Stdout: out, Stderr: io.Discard}
					if i == 0 {
						req.Stdin, o.Stdin, o.Stderr = true, in, errs
					}
					address, _ := r.reach(c.attachURL(req))
					go func() { ended <- r.stream(ctx(), name, address, o) }()
				}
				c.attached(before, len(outs))
				r.ok(r.n.Runtime.StartContainer(ctx(), c.cid))
				for i, out := range outs {
					r.eventually(fmt.Sprintf("client %d has the first line", i), out.has("first\n"))
				}
				_, _ = typed.Write([]byte("hello\n"))
				r.eventually("the input comes back", outs[2].has("hello\n"))
				_ = typed.Close()
				if name == "websocket-v4" { // whose clients cannot end their input
					r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
				} else if st := c.finish(); st.ExitCode != 0 {
					r.Errorf("exit code %d", st.ExitCode)
				}
				for range outs {
					if err := <-ended; err != nil {
						r.Error(err)
					}
				}
				if name != "websocket-v4" && errs.String() != "err\n" {
					r.Errorf("stderr %q", errs)
				}
				for i, out := range outs {
					want := "first\nhello\nEND\n"
					if name == "websocket-v4" {
						want = "first\nhello\n"
					}
					if out.String() != want {
						r.Errorf("client %d got %q", i, out)
					}
				}
			})
		}
	})
}

// TestAttachWithTerminal leaves and comes back.
func TestAttachWithTerminal(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(
			busybox("main", "while read x; do echo got $x; stty size; done; exit 4", func(c *v1.ContainerConfig) {
				c.Stdin, c.Tty = true, true
			}))
		for i := range 2 {
			in, typed := io.Pipe()
			size, out, ended := make(sizes, 1), &transcript{}, make(chan error, 1)
			address, relay := r.reach(c.attachURL(&v1.AttachRequest{Stdin: true, Stdout: true, Tty: true}))
			size <- remotecommand.TerminalSize{Width: uint16(70 + i), Height: 20}
			go func() {
				ended <- r.stream(ctx(), "spdy", address,
					remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: size})
			}()
			r.eventually("the terminal answers and has its size", func() bool {
				_, _ = fmt.Fprintf(typed, "%d\n", i)
				time.Sleep(20 * time.Millisecond)
				return strings.Contains(out.String(), fmt.Sprintf("got %d\r\n20 %d\r\n", i, 70+i))
			})
			relay.cut()
			<-ended
			close(size)
		}
		if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING {
			r.Errorf("after its clients went away the container is %v", st.State)
		}
	})
}

// TestTypedAtATerminalWithoutInput attaches with input to a container that was made with a terminal and without stdin:
// what is typed does not reach it, and what it writes reaches the client.
func TestTypedAtATerminalWithoutInput(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "while ! read -t 1 x; do echo none; done; echo \"read $x\"; sleep 1000",
			func(c *v1.ContainerConfig) { c.Tty = true }))
		c.logged("none")
		in, typed := io.Pipe()
		out, ended := &transcript{}, make(chan error, 1)
		address, relay := r.reach(c.attachURL(&v1.AttachRequest{Stdin: true, Stdout: true, Tty: true}))
		go func() {
			ended <- r.stream(ctx(), "spdy", address, remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true})
		}()
		_, err := typed.Write([]byte("typed\n"))
		r.ok(err)
		r.eventually("the client sees the terminal", func() bool { return strings.Count(out.String(), "none") > 2 })
		if got := c.text(""); strings.Contains(got, "typed") {
			r.Errorf("the log has %q", got)
		}
		relay.cut()
		<-ended
	})
}

// TestAttachedClientThatDoesNotRead must not slow the container, and is told that it missed something.
func TestAttachedClientThatDoesNotRead(t *testing.T) {
	each(t, func(r rig) {
		// Since Linux 6.16 a socket holds up to 32 MiB that nobody reads. Less than what all buffers hold drops nobody.
		c := r.pod().create(busybox("main", "head -c 100000000 /dev/zero | tr '\\0' x; echo; sleep 1000"))
		address, _ := r.reach(c.attachURL(&v1.AttachRequest{Stdout: true}))
		out, ended, before := &slowly{free: make(chan struct{})}, make(chan error, 1), c.pipes()
		go func() { ended <- r.stream(ctx(), "spdy", address, remotecommand.StreamOptions{Stdout: out}) }()
		c.attached(before, 1)
		r.ok(r.n.Runtime.StartContainer(ctx(), c.cid))
		r.eventually("the container is through", func() bool {
			return countProcesses("head -c", c.cid) == 0 && countProcesses("sleep 1000", c.cid) == 1
		})
		close(out.free)
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "did not keep up") {
				r.Errorf("the client is told %v", err)
			}
		case <-time.After(timeouts.For(time.Minute)):
			r.Fatal("the client was not dropped")
		}
	})
}

// slowly reads nothing until it is free.
type slowly struct{ free chan struct{} }

func (s *slowly) Write(p []byte) (int, error) { <-s.free; return len(p), nil }

func TestBadStreams(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		running, made, over := p.start(busybox("a", "sleep 1000")), p.create(busybox("b", "true")),
			p.start(busybox("c", "true"))
		over.finish()
		gone := r.pod()
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), gone.id))
		for _, x := range []struct {
			name, id string
			exec     codes.Code
			attach   codes.Code
		}{
			{"not started", made.cid, codes.FailedPrecondition, codes.OK},
			{"exited", over.cid, codes.FailedPrecondition, codes.FailedPrecondition},
			{"unknown", strings.Repeat("0", 64), codes.NotFound, codes.NotFound},
			{"empty", "", codes.NotFound, codes.NotFound},
		} {
			_, err := r.n.Runtime.Exec(ctx(), &v1.ExecRequest{ContainerId: x.id, Cmd: sh("true"), Stdout: true})
			r.wantCode(err, x.exec)
			_, err = r.n.Runtime.Attach(ctx(), &v1.AttachRequest{ContainerId: x.id, Stdout: true})
			r.wantCode(err, x.attach)
		}
		both := &v1.AttachRequest{ContainerId: running.cid, Tty: true, Stdout: true, Stderr: true}
		_, err := r.n.Runtime.Attach(ctx(), both)
		r.wantCode(err, codes.InvalidArgument, "terminal")
		_, err = r.n.Runtime.Attach(ctx(), &v1.AttachRequest{ContainerId: running.cid})
		r.wantCode(err, codes.InvalidArgument, "stdin")
		_, err = r.n.Runtime.PortForward(ctx(), &v1.PortForwardRequest{PodSandboxId: gone.id, Port: []int32{80}})
		r.wantCode(err, codes.FailedPrecondition, gone.id, "not ready")
		_, err = r.n.Runtime.PortForward(ctx(), &v1.PortForwardRequest{PodSandboxId: strings.Repeat("0", 64)})
		r.wantCode(err, codes.NotFound)
		_, err = r.n.Runtime.PortForward(ctx(), &v1.PortForwardRequest{PodSandboxId: p.id, Port: []int32{70000}})
		r.wantCode(err, codes.InvalidArgument, "70000")

		address, _ := r.reach(running.execURL(&v1.ExecRequest{Cmd: sh("true"), Stdout: true}))
		o := remotecommand.StreamOptions{Stdout: io.Discard}
		if err := r.stream(ctx(), "spdy", address+"x", o); err == nil ||
			!strings.Contains(err.Error(), "nothing at this address") {
			r.Errorf("a wrong token: %v", err)
		}
		if err := r.stream(ctx(), "spdy", strings.Replace(address, "/exec/", "/attach/", 1), o); err == nil {
			r.Error("a token for an exec was good for an attachment")
		}
		r.ok(r.stream(ctx(), "spdy", address, o))
		if err := r.stream(ctx(), "spdy", address, o); err == nil ||
			!strings.Contains(err.Error(), "nothing at this address") {
			r.Errorf("a used token: %v", err)
		}
		address, _ = r.reach(running.execURL(&v1.ExecRequest{Cmd: sh("true"), Stdout: true}))
		for _, want := range []int{http.StatusBadRequest, http.StatusNotFound} { // no upgrade; then it is used up
			resp, err := http.Get(address)
			r.ok(err)
			_ = resp.Body.Close()
			if resp.StatusCode != want {
				r.Errorf("a plain request is answered %s", resp.Status)
			}
		}
	})
}

// TestStreamsAndARestart has a daemon die under an exec, an attachment and a forwarded port.
func TestStreamsAndARestart(t *testing.T) {
	t.Parallel()
	r := ownNode(t, node.Options{})
	r.pull("busybox:latest")
	p := r.pod()
	c := p.start(busybox("main", "while echo tick; do sleep 0.1; done"))
	port := p.listen("tcp", ":0", echo)
	f := p.forward(port, false)
	conn := f.dial()
	_, err := conn.Write([]byte("x"))
	r.ok(err)
	_, err = io.ReadFull(conn, make([]byte, 1))
	r.ok(err)
	ended := make(chan error, 3)
	running := &transcript{}
	for i, tty := range []bool{false, true} {
		address, _ := r.reach(
			c.execURL(&v1.ExecRequest{Cmd: sh(fmt.Sprintf("echo on; sleep 765%d", i)), Stdout: true, Tty: tty}))
		go func() {
			ended <- r.stream(ctx(), "spdy", address, remotecommand.StreamOptions{Stdout: running, Tty: tty})
		}()
	}
	attached := &transcript{}
	address, _ := r.reach(c.attachURL(&v1.AttachRequest{Stdout: true}))
	go func() { ended <- r.stream(ctx(), "spdy", address, remotecommand.StreamOptions{Stdout: attached}) }()
	r.eventually("all stream", func() bool {
		select {
		case err := <-ended:
			r.Fatalf("a client was sent away: %v; the commands said %q, the container %q", err, running, attached)
		default:
		}
		return strings.Count(running.String(), "on") == 2 && strings.Contains(attached.String(), "tick")
	})
	old, _ := r.reach(c.execURL(&v1.ExecRequest{Cmd: sh("true"), Stdout: true}))
	r.ok(r.n.Restart())
	for range cap(ended) {
		select {
		case <-ended:
		case <-time.After(time.Minute):
			r.Fatal("a client waits for a daemon that is gone")
		}
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		r.Error("a forwarded connection outlived the daemon")
	}
	r.eventually("what was run is gone", func() bool { return countProcesses("sleep 765", c.cid) == 0 })
	if err := r.stream(ctx(), "spdy", old, remotecommand.StreamOptions{Stdout: io.Discard}); err == nil {
		r.Error("a token outlived the daemon")
	}
	out := &transcript{}
	address, _ = r.reach(c.execURL(&v1.ExecRequest{Cmd: sh("echo again"), Stdout: true}))
	within, cancel := context.WithTimeout(ctx(), time.Minute)
	defer cancel()
	r.ok(r.stream(within, "spdy", address, remotecommand.StreamOptions{Stdout: out}))
	r.wantText("the exec after", out.String(), "again")
}
