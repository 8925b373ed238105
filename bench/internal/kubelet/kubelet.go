// Package kubelet asks a CRI runtime for pods as a kubelet does, and says how long each answer took.
package kubelet

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Mark is the environment variable by which a container of this package is known on the machine; its value is the
// Name of the runtime.
const Mark = "CRIBENCH_WORKLOAD"

// label marks our pods, with the name of the runtime as its value, so that Purge removes no others.
const label = "cribench"

// serial numbers the pods of this process, so that two names for one socket do not collide.
var serial atomic.Int64

// A Runtime is a CRI runtime under measurement. Set the fields before Connect.
type Runtime struct {
	Name   string
	Socket string
	Image  string   // of every container
	Idle   []string // the command that prints "ready" and then waits until SIGTERM
	Dir    string   // for log folders and small files of the pods
	// CgroupParent is what the pods' own cgroup parents are made under; empty leaves it to the runtime.
	CgroupParent string
	// Counted says that the daemon is below CgroupParent too, see CountProcessorTime.
	Counted bool
	// Variables and Volumes are how many environment variables and bind mounts each container has beyond the few of an
	// idle one's: those of a Deployment on a cluster with some services are about 30 and 12.
	Variables, Volumes int
	Memory             int64  // limit of each container in bytes; 0 is none
	Processes          int    // limit of each pod, which is the kubelet's to set; 0 is none
	Ready              string // what the command prints once it waits; "ready" where it is empty
	Version            string // known once connected

	conn    *grpc.ClientConn
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient
}

// Connect waits until the runtime answers, and reads its version.
func (r *Runtime) Connect(ctx context.Context) error {
	if err := r.dial(); err != nil {
		return err
	}
	var last error
	for {
		err := r.ready(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("wait for %s to be ready: %w", r.Name, last)
		}
	}
}

func (r *Runtime) dial() (err error) {
	r.conn, err = grpc.NewClient("unix:"+r.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", r.Name, err)
	}
	r.runtime, r.images = cri.NewRuntimeServiceClient(r.conn), cri.NewImageServiceClient(r.conn)
	return nil
}

func (r *Runtime) ready(ctx context.Context) error {
	v, err := r.runtime.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return err
	}
	r.Version = v.RuntimeName + " " + v.RuntimeVersion
	status, err := r.runtime.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range status.GetStatus().GetConditions() {
		if !c.Status && (c.Type == cri.RuntimeReady || c.Type == cri.NetworkReady) {
			return fmt.Errorf("%s: %s %s", c.Type, c.Reason, c.Message)
		}
	}
	return nil
}

// With is the same runtime over the same connection, asked for other pods.
func (r *Runtime) With(edit func(*Runtime)) *Runtime {
	other := *r
	edit(&other)
	return &other
}

// Close ends the connection.
func (r *Runtime) Close() error { return r.conn.Close() }

// Daemon is the process that listens at the socket.
func (r *Runtime) Daemon() (pid int, err error) {
	conn, err := net.Dial("unix", r.Socket)
	if err != nil {
		return 0, fmt.Errorf("find the daemon of %s: %w", r.Name, err)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return 0, fmt.Errorf("find the daemon of %s: %w", r.Name, err)
	}
	return int(cred.Pid), nil
}

// Pull fetches the image of the containers.
func (r *Runtime) Pull(ctx context.Context) error {
	_, err := r.PullImage(ctx, r.Image)
	return err
}

// PullImage fetches an image, and says how long the answer took.
func (r *Runtime) PullImage(ctx context.Context, image string) (time.Duration, error) {
	begin := time.Now()
	if _, err := r.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
		return 0, fmt.Errorf("%s: pull %s: %w", r.Name, image, err)
	}
	return time.Since(begin), nil
}

// Phases are the three calls of a pod start.
type Phases struct{ Sandbox, Create, Start time.Duration }

// Total is the time of a pod start.
func (p Phases) Total() time.Duration { return p.Sandbox + p.Create + p.Start }

// A Pod runs one idle container.
type Pod struct {
	ID, Container string

	runtime *Runtime
	config  *cri.PodSandboxConfig
}

// Start starts a pod with one container. When it fails, nothing of the pod is left.
func (r *Runtime) Start(ctx context.Context, hostNetwork bool) (*Pod, Phases, error) {
	config, err := r.podConfig(hostNetwork)
	if err != nil {
		return nil, Phases{}, err
	}
	p := &Pod{runtime: r, config: config}
	if parent := config.Linux.CgroupParent; r.Processes > 0 && parent != "" {
		if err := LimitProcesses(parent, r.Processes); err != nil {
			return nil, Phases{}, err
		}
	}
	phases, err := p.start(ctx)
	if err != nil {
		if p.ID != "" {
			err = errors.Join(err, p.Discard())
		}
		return nil, phases, fmt.Errorf("%s: start pod %s: %w", r.Name, config.Metadata.Name, err)
	}
	return p, phases, nil
}

func (p *Pod) start(ctx context.Context) (t Phases, err error) {
	r, begin := p.runtime, time.Now()
	sandbox, err := r.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		return t, fmt.Errorf("RunPodSandbox: %w", err)
	}
	p.ID, t.Sandbox = sandbox.PodSandboxId, time.Since(begin)

	begin = time.Now()
	created, err := r.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: p.ID, Config: r.containerConfig(p.config), SandboxConfig: p.config,
	})
	if err != nil {
		return t, fmt.Errorf("CreateContainer: %w", err)
	}
	p.Container, t.Create = created.ContainerId, time.Since(begin)

	begin = time.Now()
	if _, err := r.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.Container}); err != nil {
		return t, fmt.Errorf("StartContainer: %w", err)
	}
	t.Start = time.Since(begin)
	return t, p.awaitReady(ctx)
}

// awaitReady waits, untimed, until the program has said that it is ready: before that the first process of a PID
// namespace would never see a SIGTERM, and Stop would measure the grace period.
func (p *Pod) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	word := cmp.Or(p.runtime.Ready, "ready")
	for {
		text, err := head(p.Log())
		if err == nil && bytes.Contains(text, []byte(word)) {
			return nil
		}
		if pause(ctx, 2*time.Millisecond) != nil {
			return fmt.Errorf("the program did not print %q to %s; it begins with %.200q", word, logPath, text)
		}
	}
}

// grace is what a kubelet gives a container to end by itself; ours ends at once.
const grace = 30

// Stop ends the container by its signal, then stops the pod.
func (p *Pod) Stop(ctx context.Context) (time.Duration, error) {
	return p.StopWithin(ctx, grace)
}

// StopWithin is Stop where the container is killed after so many seconds.
func (p *Pod) StopWithin(ctx context.Context, grace int64) (time.Duration, error) {
	begin := time.Now()
	r := p.runtime.runtime
	if _, err := r.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: p.Container, Timeout: grace}); err != nil {
		return 0, fmt.Errorf("%s: stop container: %w", p.runtime.Name, err)
	}
	if _, err := r.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		return 0, fmt.Errorf("%s: stop pod: %w", p.runtime.Name, err)
	}
	return time.Since(begin), nil
}

// Remove removes the container and the stopped pod; then, untimed, what a kubelet owns: its log folder and cgroup.
func (p *Pod) Remove(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	r := p.runtime.runtime
	if p.Container != "" {
		if _, err := r.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: p.Container}); err != nil {
			return 0, fmt.Errorf("%s: remove container: %w", p.runtime.Name, err)
		}
	}
	if _, err := r.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		return 0, fmt.Errorf("%s: remove pod: %w", p.runtime.Name, err)
	}
	took := time.Since(begin)
	if parent := p.config.Linux.CgroupParent; parent != "" {
		if err := RemoveCgroup(parent); err != nil {
			return 0, err
		}
	}
	return took, os.RemoveAll(p.config.LogDirectory)
}

// Discard stops and removes the pod, whatever became of it.
func (p *Pod) Discard() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, stopErr := p.runtime.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.ID})
	_, err := p.Remove(ctx)
	return errors.Join(stopErr, err)
}

// Exec runs a command in the container and waits for its end.
func (p *Pod) Exec(ctx context.Context, command ...string) (time.Duration, error) {
	begin := time.Now()
	resp, err := p.runtime.runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: p.Container, Cmd: command, Timeout: 60})
	took := time.Since(begin)
	if err == nil && resp.ExitCode != 0 {
		err = fmt.Errorf("exit code %d: %s", resp.ExitCode, resp.Stderr)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: exec %s: %w", p.runtime.Name, strings.Join(command, " "), err)
	}
	return took, nil
}

// Purge removes every pod that an earlier or broken run of this package left.
func (r *Runtime) Purge() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	list, err := r.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{
		Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{label: r.Name}},
	})
	if err != nil {
		return fmt.Errorf("%s: list pods: %w", r.Name, err)
	}
	var errs []error
	for _, item := range list.Items {
		config := &cri.PodSandboxConfig{
			LogDirectory: r.podDir(item.Metadata.Name),
			Linux:        &cri.LinuxPodSandboxConfig{CgroupParent: r.cgroupParent(item.Metadata.Uid)},
		}
		errs = append(errs, (&Pod{ID: item.Id, runtime: r, config: config}).Discard())
	}
	return errors.Join(errs...)
}

func (r *Runtime) podDir(name string) string { return filepath.Join(r.Dir, r.Name, name) }
