package e2e

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/exec"

	"berth/test/timeouts"
)

func (c *ctr) tryExec(timeout time.Duration, script string) (stdout, stderr string, err error) {
	out, errOut, err := c.n.Runtime.ExecSync(ctx(), c.cid, []string{"sh", "-c", script}, timeout)
	return string(out), string(errOut), err
}

func TestExecSync(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 1000", func(c *v1.ContainerConfig) {
			c.WorkingDir, c.Envs = "/tmp", []*v1.KeyValue{{Key: "WHO", Value: []byte("me")}}
			c.Linux.SecurityContext.RunAsUsername = "app"
			c.Linux.SecurityContext.Capabilities = &v1.Capability{DropCapabilities: []string{"ALL"}}
		}))
		for _, x := range []struct {
			name, script, stdout, stderr string
			code                         int
		}{
			{"output", "echo a; echo b >&2", "a\n", "b\n", 0},
			{"exit code", "exit 9", "", "", 9},
			{"signalled", "kill -9 $$", "", "", 137},
			{"no stdin", "cat", "", "", 0},
			{"surroundings", `echo $(pwd) $WHO $HOME $(id -u) $(grep -c 'CapEff:.*0000000000000000' /proc/self/status)`,
				"/tmp me /home/app 1000 1\n", "", 0},
			{"much", "head -c 3000000 /dev/zero | tr '\\0' x", strings.Repeat("x", 3000000), "", 0},
		} {
			stdout, stderr, err := c.tryExec(timeouts.For(20*time.Second), x.script)
			code := 0
			if e, ok := err.(exec.CodeExitError); ok {
				code, err = e.Code, nil
			}
			if err != nil || stdout != x.stdout || stderr != x.stderr || code != x.code {
				r.Errorf("%s: stdout %.80q (%d bytes), stderr %.80q, code %d, %v", x.name, stdout, len(stdout), stderr, code, err)
			}
		}
	})
}

func TestExecTimeout(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 1000"))
		began := time.Now()
		_, _, err := c.tryExec(time.Second, "trap '' TERM; sleep 4321 & sleep 4321; wait")
		took := time.Since(began)
		if err == nil || !strings.Contains(err.Error(), "timed out") && status.Code(err) != codes.DeadlineExceeded {
			r.Errorf("a timeout gave %v", err)
		}
		if took < 900*time.Millisecond || took > timeouts.For(time.Minute) {
			r.Errorf("took %s", took)
		}
		r.eventually("nothing of the exec runs any more", func() bool { return countProcesses("4321", c.cid) == 0 })
		c.exec("true")
	})
}

// TestExecThatLeavesAChild checks that a child holding the pipes does not hang the call, and is let live.
func TestExecThatLeavesAChild(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 1000"))
		began := time.Now()
		out, _, err := c.tryExec(timeouts.For(2*time.Minute), "sleep 5432 & echo started")
		if took := time.Since(began); err != nil || out != "started\n" || took > timeouts.For(time.Minute) {
			r.Errorf("after %s: %q, %v", took, out, err)
		}
	})
}

// TestExecThatLeavesAWriter lets a process live that an exec has left and that writes after the exec's answer, as a
// server does that a postStart hook has started.
func TestExecThatLeavesAWriter(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 1000"))
		out, _, err := c.tryExec(timeouts.For(time.Minute),
			"(while :; do echo tick; echo tock >&2; echo x >> /tmp/ticks; sleep 0.1; done) & echo started")
		if err != nil || !strings.Contains(out, "started\n") {
			r.Fatalf("%q, %v", out, err)
		}
		ticks := func() int { return len(c.exec("cat", "/tmp/ticks")) }
		r.eventually("it has written after the answer", func() bool { return ticks() > 0 })
		before := ticks()
		r.eventually("it writes on", func() bool { return ticks() > before+10 })
	})
}

func TestManyExecs(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 1000"))
		done := make(chan error, 20)
		for range cap(done) {
			go func() {
				_, _, err := c.tryExec(timeouts.For(time.Minute), "echo x")
				done <- err
			}()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				r.Error(err)
			}
		}
	})
}

func TestBadExec(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		running, made, over := p.start(busybox("a", "sleep 1000")), p.create(busybox("b", "true")),
			p.start(busybox("c", "true"))
		over.finish()
		for _, x := range []struct {
			name, id string
			command  []string
			codes    []codes.Code // codes that are right; none: an exit code
		}{
			{"no command", running.cid, nil, []codes.Code{codes.InvalidArgument}},
			{"a NUL, before which crun ends", running.cid, []string{"sh\x00x", "-c", "true"},
				[]codes.Code{codes.InvalidArgument}},
			{"not started", made.cid, []string{"true"}, []codes.Code{codes.FailedPrecondition}},
			{"exited", over.cid, []string{"true"}, []codes.Code{codes.FailedPrecondition}},
			{"unknown", strings.Repeat("0", 64), []string{"true"}, []codes.Code{codes.NotFound}},
		} {
			_, _, err := r.n.Runtime.ExecSync(ctx(), x.id, x.command, timeouts.For(time.Minute))
			r.wantCode(err, x.codes[0])
		}
		_, err := r.client().ExecSync(ctx(), &v1.ExecSyncRequest{ContainerId: running.cid, Cmd: sh("true"), Timeout: -1})
		r.wantCode(err, codes.InvalidArgument, "-1")
		_, stderr, err := r.n.Runtime.ExecSync(ctx(), running.cid, []string{"/no/such"}, timeouts.For(time.Minute))
		if err == nil || !strings.Contains(err.Error()+string(stderr), "/no/such") {
			r.Errorf("a missing program gave %v, stderr %q", err, stderr)
		}
	})
}
