package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/timeouts"
)

// A rig is a test and the node it runs on. Its methods end the test when something fails that is not what it tests.
type rig struct {
	*testing.T
	n *node.Node
}

// each runs f on the shared node of each runtime, side by side.
func each(t *testing.T, f func(r rig)) {
	t.Helper()
	t.Parallel()
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			r := rig{t, sharedNode(t, runtime)}
			r.pull("busybox:latest")
			f(r)
		})
	}
}

func (r rig) sub(name string, f func(r rig)) {
	r.Run(name, func(t *testing.T) { f(rig{t, r.n}) })
}

func (r rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// wantCode checks the gRPC code of an error, and that its text names each of the words.
func (r rig) wantCode(err error, want codes.Code, words ...string) {
	r.Helper()
	if status.Code(err) != want {
		r.Errorf("code %s, wanted %s: %v", status.Code(err), want, err)
		return
	}
	for _, w := range words {
		if err != nil && !strings.Contains(err.Error(), w) {
			r.Errorf("the error does not name %q: %v", w, err)
		}
	}
}

func codeOf(err error) codes.Code { return status.Code(err) }

func ctx() context.Context { return context.Background() }

// pull makes sure that an image of the shared registry is on the node, and returns its reference.
func (r rig) pull(image string) string {
	r.Helper()
	_, err := r.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: ref(image)}, nil, nil)
	r.ok(err)
	return ref(image)
}

// pod is a running pod of a test.
type pod struct {
	rig
	id     string
	config *v1.PodSandboxConfig
}

// pod runs a pod, and removes it when the test is over.
func (r rig) pod(edits ...func(*v1.PodSandboxConfig)) *pod {
	r.Helper()
	config := r.n.Pod(unique(r.T), edits...)
	id, err := r.n.Runtime.RunPodSandbox(ctx(), config, "")
	r.ok(err)
	p := &pod{r, id, config}
	r.Cleanup(p.remove)
	return p
}

func (p *pod) remove() {
	if err := p.n.Runtime.StopPodSandbox(ctx(), p.id); err != nil {
		p.Errorf("stop pod: %v", err)
	}
	if err := p.n.Runtime.RemovePodSandbox(ctx(), p.id); err != nil {
		p.Errorf("remove pod: %v", err)
	}
}

// on gives the same pod to a subtest.
func (p *pod) on(r rig) *pod { return &pod{r, p.id, p.config} }

func (p *pod) status() *v1.PodSandboxStatus {
	p.Helper()
	resp, err := p.n.Runtime.PodSandboxStatus(ctx(), p.id, false)
	p.ok(err)
	return resp.Status
}

func (p *pod) ip() string { return p.status().GetNetwork().GetIp() }

type edit = func(*v1.ContainerConfig)

// busybox is a container that runs a shell script.
func busybox(name, script string, edits ...edit) *v1.ContainerConfig {
	return node.Container(name, ref("busybox:latest"), []string{"sh", "-c", script}, edits...)
}

// webapp is a container that runs /webapp in the given mode.
func webapp(name, mode string, edits ...edit) *v1.ContainerConfig {
	return node.Container(name, ref("busybox:latest"), append([]string{"/webapp"}, strings.Fields(mode)...), edits...)
}

// ctr is a container of a test's pod.
type ctr struct {
	*pod
	cid string
	log string
}

func (p *pod) create(config *v1.ContainerConfig) *ctr {
	p.Helper()
	id, err := p.n.Runtime.CreateContainer(ctx(), p.id, config, p.config)
	p.ok(err)
	return &ctr{p, id, filepath.Join(p.config.LogDirectory, config.LogPath)}
}

func (p *pod) start(config *v1.ContainerConfig) *ctr {
	p.Helper()
	c := p.create(config)
	p.ok(p.n.Runtime.StartContainer(ctx(), c.cid))
	return c
}

func (c *ctr) status() *v1.ContainerStatus {
	c.Helper()
	resp, err := c.n.Runtime.ContainerStatus(ctx(), c.cid, false)
	c.ok(err)
	return resp.Status
}

// finish waits until the container has exited.
func (c *ctr) finish() *v1.ContainerStatus {
	c.Helper()
	var st *v1.ContainerStatus
	c.eventually("the container exits", func() bool {
		st = c.status()
		return st.State == v1.ContainerState_CONTAINER_EXITED
	})
	return st
}

// eventually waits for something that needs a moment.
func (r rig) eventually(what string, f func() bool) {
	r.Helper()
	deadline := time.Now().Add(timeouts.For(time.Minute))
	for !f() {
		if time.Now().After(deadline) {
			r.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// logged waits until the log holds the text.
func (c *ctr) logged(text string) {
	c.Helper()
	c.eventually(fmt.Sprintf("the log holds %q", text), func() bool {
		lines, err := node.ReadLog(c.log)
		return err == nil && strings.Contains(node.Text(lines, ""), text)
	})
}

// text is all that the container wrote to a stream (both when empty), by its log.
func (c *ctr) text(stream string) string {
	c.Helper()
	lines, err := node.ReadLog(c.log)
	c.ok(err)
	return node.Text(lines, stream)
}

// output runs a container to its end and returns what it printed. It must exit with 0.
func (p *pod) output(config *v1.ContainerConfig) string {
	p.Helper()
	c := p.start(config)
	st := c.finish()
	out := c.text("stdout")
	if st.ExitCode != 0 {
		p.Fatalf("exit code %d (%s %s): %s%s", st.ExitCode, st.Reason, st.Message, out, c.text("stderr"))
	}
	return out
}

// exec runs a command in the container and returns its output. It must exit with 0.
func (c *ctr) exec(args ...string) string {
	c.Helper()
	stdout, stderr, err := c.n.Runtime.ExecSync(ctx(), c.cid, args, timeouts.For(time.Minute))
	if err != nil {
		c.Fatalf("exec %v: %v: %s", args, err, stderr)
	}
	return string(stdout)
}

// release makes /tmp/go in the container, for which it waits to end. It does so from outside: an exec could be killed
// with the container before it has ended itself.
func (c *ctr) release() {
	c.Helper()
	c.ok(os.WriteFile(fmt.Sprintf("/proc/%d/root/tmp/go", c.pidOf(c.cid)), nil, 0o644))
}

// wantText checks a text, without the white space around it.
func (r rig) wantText(what, got, want string) {
	r.Helper()
	if strings.TrimSpace(got) != strings.TrimSpace(want) {
		r.Errorf("%s: got %q, wanted %q", what, got, want)
	}
}
