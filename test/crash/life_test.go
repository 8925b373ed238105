package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/timeouts"
)

// A life is what one pod goes through, from the pull of its image to the removal of everything. Each step is a request
// that a kubelet makes, and may be made again after the daemon died in the middle of it.
type life struct {
	n      *node.Node
	image  string
	config *v1.PodSandboxConfig
	pod    string // its id, from when the daemon has answered
	main   string // the id of the container that counts, likewise
	pid    int    // of the container that counts, while it must run
	ready  bool   // the pod must be ready
}

type step struct {
	name string
	do   func(*life) error
}

// steps are the whole life.
var steps = []step{
	{"pull image", (*life).pull}, {"run pod", (*life).runPod}, {"create container", (*life).create},
	{"start container", (*life).start}, {"exec", (*life).exec}, {"stop container", (*life).stop},
	{"remove container", (*life).remove}, {"run a second container", (*life).second}, {"stop pod", (*life).stopPod},
	{"remove pod", (*life).removePod}, {"remove image", (*life).removeImage},
}

func newLife(n *node.Node, image string, edit func(*v1.PodSandboxConfig)) *life {
	config := n.Pod("crash", func(c *v1.PodSandboxConfig) {
		c.PortMappings = []*v1.PortMapping{{HostPort: 18080, ContainerPort: 8080}}
	})
	edit(config)
	return &life{n: n, image: image, config: config}
}

func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), timeouts.For(time.Minute))
}

func (l *life) pull() error {
	ctx, cancel := within()
	defer cancel()
	_, err := l.n.Images.PullImage(ctx, &v1.ImageSpec{Image: l.image}, nil, nil)
	return err
}

func (l *life) runPod() (err error) {
	ctx, cancel := within()
	defer cancel()
	if l.pod, err = l.n.Runtime.RunPodSandbox(ctx, l.config, ""); err == nil {
		l.ready = true
	}
	return err
}

func (l *life) container(name, mode string) *v1.ContainerConfig {
	c := node.Container(name, l.image, append([]string{"/webapp"}, strings.Fields(mode)...))
	c.Linux.SecurityContext.NamespaceOptions = l.config.Linux.SecurityContext.NamespaceOptions
	c.Mounts = []*v1.Mount{{ContainerPath: "/volume", Readonly: true, Image: &v1.ImageSpec{Image: l.image}}}
	return c
}

func (l *life) create() (err error) {
	ctx, cancel := within()
	defer cancel()
	l.main, err = l.n.Runtime.CreateContainer(ctx, l.pod, l.container("main", "count 1ms 1000000"), l.config)
	return err
}

func (l *life) start() error {
	ctx, cancel := within()
	defer cancel()
	if err := l.n.Runtime.StartContainer(ctx, l.main); err != nil {
		return err
	}
	for { // started, it has yet to become the program it is to run, and that to listen to signals
		pids := l.pids(l.main)
		if info, err := os.Stat(l.log()); err == nil && info.Size() > 0 && len(pids) == 1 {
			l.pid = pids[0]
			return nil
		}
		if ctx.Err() != nil {
			return wrong("after its start the container has processes %v", l.pids(l.main))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (l *life) log() string { return filepath.Join(l.config.LogDirectory, "main/0.log") }

// pids finds the processes of a container.
func (l *life) pids(id string) []int {
	var found []int
	entries, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, path := range entries {
		groups, _ := os.ReadFile(path)
		cmdline, _ := os.ReadFile(filepath.Dir(path) + "/cmdline")
		if strings.Contains(string(groups), id) && strings.HasPrefix(string(cmdline), "/webapp") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			found = append(found, pid)
		}
	}
	return found
}

func (l *life) exec() error {
	ctx, cancel := within()
	defer cancel()
	out, _, err := l.n.Runtime.ExecSync(ctx, l.main, []string{"/webapp", "lines", "1", "3"}, timeouts.For(10*time.Second))
	if err == nil && string(out) != "aaa\n" {
		err = wrong("exec printed %q", out)
	}
	return err
}

// stop ends the container that counts, which says bye and exits with 42, and looks whether its log is whole.
func (l *life) stop() error {
	ctx, cancel := within()
	defer cancel()
	l.pid = 0
	if err := l.n.Runtime.StopContainer(ctx, l.main, 30); err != nil {
		return err
	}
	resp, err := l.n.Runtime.ContainerStatus(ctx, l.main, false)
	if err != nil {
		return err
	}
	if st := resp.Status; st.State != v1.ContainerState_CONTAINER_EXITED || st.ExitCode != 42 {
		return wrong("the container is %s with exit code %d (%s %s), wanted 42", st.State, st.ExitCode, st.Reason, st.Message)
	}
	return l.wantWholeLog()
}

func (l *life) wantWholeLog() error {
	lines, err := node.ReadLog(l.log())
	if err != nil {
		return wrong("read log: %v", err)
	}
	for i, line := range lines {
		want := fmt.Sprintf("tick %d", i+1)
		if i == len(lines)-1 {
			want = "bye"
		}
		if line.Text != want {
			return wrong("line %d of %d in the log is %q, wanted %q", i+1, len(lines), line.Text, want)
		}
	}
	if len(lines) < 2 {
		return wrong("the log has %d lines", len(lines))
	}
	return nil
}

func (l *life) remove() error {
	ctx, cancel := within()
	defer cancel()
	return l.n.Runtime.RemoveContainer(ctx, l.main)
}

// second runs a container that exits by itself. The requests in it are repeated together.
func (l *life) second() error {
	ctx, cancel := within()
	defer cancel()
	id, err := l.n.Runtime.CreateContainer(ctx, l.pod, l.container("second", "exit 7"), l.config)
	if err != nil {
		return err
	}
	st, err := l.n.Runtime.ContainerStatus(ctx, id, false)
	if err != nil {
		return err
	}
	if st.Status.State == v1.ContainerState_CONTAINER_CREATED {
		if err := l.n.Runtime.StartContainer(ctx, id); err != nil {
			return err
		}
	}
	return l.exited(ctx, id, 7)
}

func (l *life) exited(ctx context.Context, id string, code int32) error {
	for {
		st, err := l.n.Runtime.ContainerStatus(ctx, id, false)
		if err != nil {
			return err
		}
		if st.Status.State == v1.ContainerState_CONTAINER_EXITED {
			if st.Status.ExitCode != code {
				return wrong("exit code %d (%s), wanted %d", st.Status.ExitCode, st.Status.Reason, code)
			}
			return nil
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (l *life) stopPod() error {
	ctx, cancel := within()
	defer cancel()
	l.ready = false
	return l.n.Runtime.StopPodSandbox(ctx, l.pod)
}

func (l *life) removePod() error {
	ctx, cancel := within()
	defer cancel()
	return l.n.Runtime.RemovePodSandbox(ctx, l.pod)
}

func (l *life) removeImage() error {
	ctx, cancel := within()
	defer cancel()
	return l.n.Images.RemoveImage(ctx, &v1.ImageSpec{Image: l.image})
}

// errWrong marks an answer that is wrong, as against a request that a dying daemon did not answer.
var errWrong = errors.New("wrong")

func wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errWrong, fmt.Sprintf(format, args...))
}

// holds checks, after the daemon came back, that what ran before still runs.
func (l *life) holds() error {
	ctx, cancel := within()
	defer cancel()
	if l.ready {
		resp, err := l.n.Runtime.PodSandboxStatus(ctx, l.pod, false)
		if err != nil {
			return wrong("the pod that was ready: %v", err)
		}
		if resp.Status.State != v1.PodSandboxState_SANDBOX_READY {
			return wrong("the pod that was ready is %s", resp.Status.State)
		}
	}
	if l.pid == 0 {
		return nil
	}
	for { // an exec that died with the daemon may be about to end
		pids := l.pids(l.main)
		if len(pids) == 1 && pids[0] == l.pid {
			break
		}
		if !slices.Contains(pids, l.pid) || ctx.Err() != nil {
			return wrong("the container ran as process %d, and now as %v", l.pid, pids)
		}
		time.Sleep(2 * time.Millisecond)
	}
	resp, err := l.n.Runtime.ContainerStatus(ctx, l.main, false)
	if err != nil {
		return wrong("the container that ran: %v", err)
	}
	if resp.Status.State != v1.ContainerState_CONTAINER_RUNNING {
		return wrong("the container that ran is %s with exit code %d (%s)", resp.Status.State, resp.Status.ExitCode,
			resp.Status.Reason)
	}
	return nil
}
