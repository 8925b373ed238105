package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/test/node"
)

// configure puts a drop-in beside the daemon's configuration.
func (r rig) configure(text string) {
	r.Helper()
	dir := r.n.Dir + "/conf.d"
	r.ok(os.MkdirAll(dir, 0o755))
	r.ok(os.WriteFile(dir+"/50-test.toml", []byte(text), 0o644))
}

// reload runs `berth reload` and returns what it said.
func (r rig) reload() (string, error) {
	out, cmd := new(strings.Builder), r.n.Command("reload")
	cmd.Stdout, cmd.Stderr = out, out
	err := r.n.Space.Run(cmd)
	return out.String(), err
}

// TestReload changes the configuration of a daemon under a running pod.
func TestReload(t *testing.T) {
	runtime := runtimes()[0]
	program, err := exec.LookPath(runtime)
	if err != nil {
		t.Fatal(err)
	}
	r := ownNode(t, node.Options{Runtime: runtime})
	r.pull("busybox:latest")
	p := r.pod()
	c := p.start(webapp("main", "count 5ms 1000000"))
	c.logged("tick 5\n")
	pid, ip, daemon := c.pid("webapp"), p.ip(), r.n.Pid()

	if out, err := r.reload(); err != nil || !strings.Contains(out, "nothing has changed") {
		r.Errorf("without a change: %v: %s", err, out)
	}
	other := r.n.Dir + "/other.d"
	r.ok(os.Mkdir(other, 0o755))
	network := strings.NewReplacer("10.88.", "10.89.", "bt0", "bt1", `"bt"`, `"bt-other"`).Replace(
		fmt.Sprintf(node.Bridge, r.n.Leases+"-other"))
	r.ok(os.WriteFile(other+"/10-other.conflist", []byte(network), 0o644))
	r.configure(fmt.Sprintf("log_level = \"error\"\nlog_format = \"json\"\n[cni]\nconfig_dir = %q\n[images]\npinned = "+
		"[%q]\nmax_layers = 1\n[limits]\npids = 77\n[runtimes.more]\npath = %q\n",
		other, ref("busybox:latest"), program))
	out, err := r.reload()
	if err != nil {
		r.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{`log_format: "text" → "json", after a restart`, "images.pinned: [] → [",
		"images.max_layers: 500 → 1\n",
		"limits.pids: 0 → 77\n", "runtimes.more.path: (none) → ", "cni.config_dir: "} {
		if !strings.Contains(out, want) {
			r.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "log_level") {
		r.Errorf("the daemon's flag is no longer stronger than the file:\n%s", out)
	}
	r.afterReload(other)

	r.configure("[runtimes.more]\npath = 7\n")
	if out, err := r.reload(); err == nil || !strings.Contains(out, "50-test.toml:2") ||
		!strings.Contains(out, "runtimes.more.path") {
		r.Errorf("a bad file: %v: %s", err, out)
	}
	r.configure("log_level = \"warn\"\n[cni]\nconfig_dir = \"/nonesuch\"\n[runtimes.more]\npath = \"/x\"\nbase_spec = " +
		"\"/nonesuch/base.json\"\n")
	if out, err := r.reload(); err == nil ||
		!strings.Contains(out, "50-test.toml:6: runtimes.more.base_spec: /nonesuch/base.json") {
		r.Errorf("a base spec that is not there: %v: %s", err, out)
	}
	if cgroup.Mode() != cgroup.V2 {
		r.configure("[runtimes.more]\npath = \"/x\"\ncgroup_writable = true\n")
		// Which mode it names is the daemon's: with crun the tests hide the unified hierarchy of a hybrid host from it.
		const wanted = "50-test.toml:3: runtimes.more.cgroup_writable: needs cgroup v2, and this host is on "
		if out, err := r.reload(); err == nil || !strings.Contains(out, wanted) {
			r.Errorf("writable cgroups without cgroup v2: %v: %s", err, out)
		}
	}
	r.afterReload(other)

	more := r.podOf("more")
	running := more.start(busybox("main", "sleep 1000"))
	r.configure("")
	r.ok(syscall.Kill(daemon, syscall.SIGHUP))
	r.eventually("SIGHUP is heard", func() bool {
		st, err := r.n.Runtime.Status(ctx(), false)
		r.ok(err)
		return !handled(st, "more")
	})
	_, err = r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod("none"), "more")
	r.wantCode(err, codes.NotFound, "more")
	r.wantText("a pod of a handler that was taken away", running.exec("echo", "hi"), "hi")
	_, err = r.n.Runtime.CreateContainer(ctx(), more.id, busybox("late", "true"), more.config)
	r.wantCode(err, codes.FailedPrecondition, "more", "taken out of the configuration")
	r.ok(r.n.Runtime.StopPodSandbox(ctx(), more.id))
	r.ok(r.n.Runtime.RemovePodSandbox(ctx(), more.id))

	if p.ip() != ip || c.pid("webapp") != pid || r.n.Pid() != daemon {
		r.Error("the pod, or the daemon, is not what it was")
	}
	r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, seconds(60)))
	c.wantWholeCount(42)
}

// afterReload wants the changed configuration in force.
func (r rig) afterReload(cni string) {
	r.Helper()
	st, err := r.n.Runtime.Status(ctx(), true)
	r.ok(err)
	if !handled(st, "more") || !condition(st, "NetworkReady").Status || !strings.Contains(fmt.Sprint(st.Info), cni) ||
		!strings.Contains(fmt.Sprint(st.Info), `log_format = \"text\"`) {
		r.Errorf("status %v", st)
	}
	images, err := r.n.Images.ListImages(ctx(), &v1.ImageFilter{Image: &v1.ImageSpec{Image: ref("busybox:latest")}})
	r.ok(err)
	if len(images) != 1 || !images[0].Pinned {
		r.Errorf("images %v", images)
	}
	config := r.n.Pod(unique(r.T))
	id, err := r.n.Runtime.RunPodSandbox(ctx(), config, "more")
	r.ok(err)
	p := &pod{r, id, config}
	defer p.remove()
	if !strings.HasPrefix(p.ip(), "10.89.") {
		r.Errorf("a new pod is at %s", p.ip())
	}
	if got := p.start(busybox("main", "sleep 1000")).spec().RuntimeSpec.Linux.Resources.Pids; got == nil ||
		*got.Limit != 77 {
		r.Errorf("limit of processes: %+v", got)
	}
}

func handled(st *v1.StatusResponse, name string) bool {
	for _, h := range st.RuntimeHandlers {
		if h.Name == name {
			return true
		}
	}
	return false
}

// TestReloadUnderLoad reloads again and again while pods come and go.
func TestReloadUnderLoad(t *testing.T) {
	r := ownNode(t, node.Options{Runtime: runtimes()[0]})
	r.pull("busybox:latest")
	var work sync.WaitGroup
	var reloads atomic.Int64
	for i := range 3 {
		work.Go(func() {
			for n := 0; n < 3 || reloads.Load() < 3 && n < 100; n++ {
				config := r.n.Pod(fmt.Sprintf("load-%d-%d", i, n))
				id, err := r.n.Runtime.RunPodSandbox(ctx(), config, "")
				if err != nil {
					r.Errorf("run: %v", err)
					continue
				}
				ctr, err := r.n.Runtime.CreateContainer(ctx(), id, busybox("main", "true"), config)
				if err == nil {
					err = r.n.Runtime.StartContainer(ctx(), ctr)
				}
				if err != nil {
					r.Errorf("container: %v", err)
				}
				(&pod{r, id, config}).remove()
			}
		})
	}
	done := make(chan struct{})
	go func() { defer close(done); work.Wait() }()
	for i := 0; ; i++ {
		select {
		case <-done:
			if i < 3 {
				r.Errorf("only %d reloads", i)
			}
			return
		default:
		}
		r.configure(fmt.Sprintf("[cni]\nplugin_dirs = [\"/opt/cni/bin\", \"/usr/lib/cni\", \"/x%d\"]\n[images]\n"+
			"max_pull_layers = %d\n[limits]\npids = %d\n", i, i%5+1, i+100))
		if out, err := r.reload(); err != nil {
			r.Fatalf("reload: %v: %s", err, out)
		}
		reloads.Add(1)
	}
}
