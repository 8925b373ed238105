package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
	"berth/test/timeouts"
)

// runscVariable, in the environment, names gVisor's runtime where it is not on the path.
const runscVariable = "BERTH_TEST_RUNSC"

// sandboxes are handlers whose containers are in a sandbox: one that only behaves so, which is built from this
// repository, and gVisor's where it is installed.
func sandboxes(t *testing.T) map[string]string {
	t.Helper()
	boxed, err := fixture.Boxed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]string{"boxed": fmt.Sprintf("[runtimes.boxed]\npath = %q\ndriver = \"oci-infra\"\n", boxed)}
	runsc := os.Getenv(runscVariable)
	if runsc == "" {
		runsc, _ = exec.LookPath("runsc")
	}
	if runsc != "" {
		tables["runsc"] = fmt.Sprintf("[runtimes.runsc]\npath = %q\ndriver = \"oci-infra\"\nargs = "+
			"[\"--platform=systrap\", \"--gofer-network-namespace=new\"]\n", runsc)
	}
	return tables
}

// TestSandbox has pods whose containers are in a sandbox and have no process of their own on the host.
func TestSandbox(t *testing.T) {
	t.Parallel()
	tables := sandboxes(t)
	for _, name := range []string{"boxed", "runsc"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tables[name] == "" {
				t.Skipf("%s is not installed: see docs/runtimes.md, or set %s", name, runscVariable)
			}
			r := ownNode(t, node.Options{Runtime: node.Runc, Tables: tables[name]})
			r.pull("busybox:latest")
			for _, c := range []struct {
				what string
				test func(sandbox)
			}{
				{"ends", sandbox.ends}, {"exec", sandbox.execs}, {"streams", sandbox.streams}, {"pod", sandbox.shared},
				{"killed", sandbox.killed}, {"gone", sandbox.gone},
			} {
				t.Run(c.what, func(t *testing.T) { c.test(sandbox{rig{t, r.n}, name}) })
			}
		})
	}
}

// sandbox is a node with a handler of that kind.
type sandbox struct {
	rig
	handler string
}

// ends has containers end in every way.
func (s sandbox) ends() {
	p := s.podOf(s.handler)
	s.wantText("what it says", p.output(busybox("says", "echo hello; echo more")), "hello\nmore")
	if st := p.start(busybox("fails", "exit 7")).finish(); st.ExitCode != 7 || st.Reason != "Error" || st.StartedAt == 0 ||
		st.FinishedAt < st.StartedAt {
		s.Errorf("of one that fails: %+v", st)
	}
	c := p.start(busybox("stops", "trap 'echo bye; exit 5' TERM; echo on; while :; do usleep 10000; done"))
	c.logged("on\n")
	s.ok(s.n.Runtime.StopContainer(ctx(), c.cid, seconds(60)))
	if st := c.status(); st.ExitCode != 5 || c.text("stdout") != "on\nbye\n" {
		s.Errorf("of one that is stopped: %+v", st)
	}
	c = p.start(busybox("ignores", "trap '' TERM; echo on; while :; do usleep 10000; done"))
	c.logged("on\n")
	s.ok(s.n.Runtime.StopContainer(ctx(), c.cid, 1))
	if st := c.status(); st.ExitCode != 137 {
		s.Errorf("of one that is killed: %+v", st)
	}
	c = p.create(busybox("waits", "true"))
	s.ok(s.n.Runtime.StopContainer(ctx(), c.cid, 1))
	s.ok(s.n.Runtime.RemoveContainer(ctx(), c.cid))
	c = p.create(node.Container("ghost", ref("busybox:latest"), []string{"/nonesuch"}))
	if err := s.n.Runtime.StartContainer(ctx(), c.cid); err == nil {
		s.Error("a program that is not there was started")
	}
	if st := c.finish(); st.ExitCode != 128 || st.Reason != "ContainerCannotRun" {
		s.Errorf("of one that cannot run: %+v", st)
	}
	s.ok(s.n.Runtime.RemoveContainer(ctx(), c.cid))
	if p.status().State != v1.PodSandboxState_SANDBOX_READY {
		s.Error("the pod has ended with its containers")
	}
}

// execs runs commands in a container.
func (s sandbox) execs() {
	p := s.podOf(s.handler)
	c := p.start(busybox("main", "echo on; while :; do usleep 100000; done"))
	c.logged("on\n")
	s.wantText("exec", c.exec("echo", "hi"), "hi")
	_, _, err := s.n.Runtime.ExecSync(ctx(), c.cid, sh("exit 3"), timeouts.For(time.Minute))
	if err == nil || !strings.Contains(err.Error(), "3") {
		s.Errorf("exec that fails: %v", err)
	}
	_, _, err = s.n.Runtime.ExecSync(ctx(), c.cid, sh("sleep 4321 & sleep 4322"), timeouts.For(time.Second))
	if err == nil || !strings.Contains(err.Error(), "timed out") {
		s.Errorf("exec that takes too long: %v", err)
	}
	s.eventually("nothing of it is left", func() bool { return !strings.Contains(c.exec("ps"), "sleep 432") })
}

// streams has clients at the streams of containers and commands.
func (s sandbox) streams() {
	p := s.podOf(s.handler)
	c := p.start(busybox("main", "while read x; do echo got $x; done; exit 4", func(c *v1.ContainerConfig) {
		c.Stdin, c.Tty = true, true
	}))
	var out transcript
	address, _ := s.reach(
		c.execURL(&v1.ExecRequest{Cmd: sh("test -t 0 && echo terminal; read x; echo also $x; exit 3"), Stdin: true,
			Stdout: true, Tty: true}))
	err := s.stream(ctx(), "websocket-v5", address,
		remotecommand.StreamOptions{Stdin: strings.NewReader("x\n"), Stdout: &out, Tty: true})
	if err == nil || !strings.Contains(err.Error(), "3") || !strings.Contains(out.String(), "terminal") ||
		!strings.Contains(out.String(), "also x") {
		s.Errorf("a command with a terminal: %v, %q", err, out.String())
	}
	var seen transcript
	address, _ = s.reach(c.attachURL(&v1.AttachRequest{Stdin: true, Stdout: true, Tty: true}))
	err = s.stream(ctx(), "spdy", address,
		remotecommand.StreamOptions{Stdin: strings.NewReader("one\n\x04"), Stdout: &seen, Tty: true})
	if err != nil || !strings.Contains(seen.String(), "got one") {
		s.Errorf("attached: %v, %q", err, seen.String())
	}
	if st := c.finish(); st.ExitCode != 4 {
		s.Errorf("after the end of its input: %+v", st)
	}
}

// shared has what containers of a pod have in common: its network, and its processes where it says so.
func (s sandbox) shared() {
	p := s.podOf(s.handler, func(c *v1.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = v1.NamespaceMode_POD
	})
	p.serving()
	page, err := s.n.Get("http://" + p.ip() + ":8080/")
	if err != nil || !strings.Contains(page, "Hello from") {
		s.Errorf("page %q, %v", page, err)
	}
	answer, err := io.ReadAll(p.request(8080))
	if err != nil || !strings.Contains(string(answer), "Hello from") {
		s.Errorf("through a forwarded port: %q, %v", answer, err)
	}
	c := p.start(busybox("main", "while :; do usleep 100000; done", func(c *v1.ContainerConfig) {
		c.Linux.SecurityContext = &v1.LinuxContainerSecurityContext{
			NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_POD}}
	}))
	if page := c.exec("wget", "-q", "-O", "-", "http://127.0.0.1:8080/"); !strings.Contains(page, "Hello from") {
		s.Errorf("by the loopback: %q", page)
	}
	stats, err := s.n.Runtime.ContainerStats(ctx(), c.cid)
	s.ok(err)
	if stats.GetAttributes().GetId() != c.cid || stats.Cpu != nil || stats.Memory != nil {
		s.Errorf("of a container nobody knows what it uses, but: %v", stats)
	}
	all, err := s.n.Runtime.PodSandboxStats(ctx(), p.id)
	s.ok(err)
	if len(all.GetLinux().GetContainers()) != 2 || all.Linux.Memory.GetUsageBytes().GetValue() == 0 {
		s.Errorf("stats of the pod: %v", all)
	}
}

// request asks a web server in the pod for a page, through a forwarded port. It leaves its direction open: gVisor ends
// both at once.
func (p *pod) request(port int) io.Reader {
	p.Helper()
	c := p.forward(port, false).dial()
	p.Cleanup(func() { _ = c.Close() })
	_, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
	p.ok(err)
	return c
}

// killed kills the daemon and the monitor under a container.
func (s sandbox) killed() {
	p := s.podOf(s.handler)
	quick := p.start(busybox("quick", "echo on; usleep 300000; exit 6"))
	slow := p.start(busybox("slow", "trap 'exit 5' TERM; echo on; while :; do usleep 10000; done"))
	slow.logged("on\n")
	s.ok(s.n.Kill9())
	time.Sleep(timeouts.For(500 * time.Millisecond))
	s.ok(s.n.Start())
	if st := quick.finish(); st.ExitCode != 6 || st.Reason != "Error" {
		s.Errorf("of one that ended without a daemon: %+v", st)
	}
	s.ok(killProcess(p.monitor()))
	s.eventually("a new monitor answers", func() bool {
		out, _, err := slow.tryExec(timeouts.For(5*time.Second), "echo hi")
		return err == nil && out == "hi\n"
	})
	s.ok(s.n.Runtime.StopContainer(ctx(), slow.cid, seconds(60)))
	if st := slow.finish(); st.ExitCode != 5 {
		s.Errorf("of one that was stopped after its monitor was killed: %+v", st)
	}
}

// gone kills the sandbox: that is the end of the pod, and of all that is in it.
func (s sandbox) gone() {
	p := s.podOf(s.handler)
	c, waits := p.start(busybox("main", "echo on; while :; do usleep 10000; done")), p.create(busybox("waits", "true"))
	c.logged("on\n")
	s.ok(killProcess(p.info().PID))
	s.eventually("the pod is not ready", func() bool { return p.status().State == v1.PodSandboxState_SANDBOX_NOTREADY })
	for _, c := range []*ctr{c, waits} {
		if st := c.finish(); st.ExitCode != 137 {
			s.Errorf("of one that was in it: %+v", st)
		}
	}
}
