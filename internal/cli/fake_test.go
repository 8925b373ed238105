package cli

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/cli/cli/config"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
	"berth/test/timeouts"
)

// daemon is a daemon without containers: what it is asked for it notes, and what a container does a test decides.
type daemon struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
	socket, dir string

	mu         sync.Mutex // guards what follows
	pods       []*runtimeapi.PodSandbox
	configs    map[string]*runtimeapi.PodSandboxConfig
	containers []*runtimeapi.ContainerStatus
	podOf      map[string]string
	requests   map[string]*runtimeapi.ContainerConfig
	images     []*runtimeapi.Image
	calls      []string
	stuck      string // in the verbose status of pods
	network    string // in that of the daemon

	// behave is a container's life, from its start on. It prints with log; its result is the exit code.
	behave  func(c *life) int32
	attach  func(recv func() (*admin.AttachInput, error), send func(*admin.AttachOutput) error) error
	started chan struct{} // closed by the first StartContainer
	refuse  map[string]error
	before  func(call string) // what happens before a call is answered
	// outlives is the call whose caller goes: what it asks for comes to be nevertheless.
	outlives    string
	limitedLogs bool // in the verbose status of containers
	unlogged    bool // in that of containers that have ended
	exec        func(ctx context.Context, req *admin.ExecRequest, recv func() (*admin.AttachInput, error),
		send func(*admin.AttachOutput) error) error
	forward func(req *admin.PortForwardRequest) error // how a connection to a port fails
	pulled  []admin.PullEvent
	// pullFails is how a pull ends, after the progress in pulled.
	pullFails error
	found     []admin.Finding
	details   []admin.ImageDetail // of images, by id
	// exportFails is how an export ends, after some of the archive.
	exportFails error
	info        admin.InfoResponse
	underway    []admin.Underway
	kept        uint64 // bytes of layers that no image has
	pulls       []admin.PullRequest
	signals     []admin.SignalRequest
	tags        []admin.TagRequest
	execs       []admin.ExecRequest
	updated     map[string]*runtimeapi.LinuxContainerResources
}

// life is a started container.
type life struct {
	path string
	stop chan struct{} // closed by StopContainer
}

func (l *life) log(stream, tag, text string) {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer func() { _ = f.Close() }()
	fmt.Fprintf(f, "2024-05-01T10:00:00.000000001Z %s %s %s\n", stream, tag, text)
}

func startDaemon(t *testing.T) *daemon {
	t.Helper()
	dir := t.TempDir()
	config.SetDir(t.TempDir()) // nobody's own credentials
	d := &daemon{
		socket: filepath.Join(dir, "s"), dir: dir, configs: map[string]*runtimeapi.PodSandboxConfig{},
		podOf:    map[string]string{},
		requests: map[string]*runtimeapi.ContainerConfig{}, started: make(chan struct{}), refuse: map[string]error{},
		behave: func(*life) int32 { return 0 },
	}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, i *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any,
			error) {
			name := i.FullMethod[strings.LastIndex(i.FullMethod, "/")+1:]
			d.mu.Lock()
			d.calls = append(d.calls, name)
			err, before, outlives := d.refuse[name], d.before, d.outlives == name
			if outlives {
				d.outlives = "" // who asks again is answered
			}
			d.mu.Unlock()
			if before != nil {
				before(name)
			}
			if err != nil {
				return nil, err
			}
			resp, err := next(ctx, req)
			if outlives {
				<-ctx.Done()
			}
			return resp, err
		}))
	runtimeapi.RegisterRuntimeServiceServer(g, d)
	runtimeapi.RegisterImageServiceServer(g, d)
	admin.Register(g, &adminDaemon{d})
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return d
}

// berth runs a command against the daemon.
func (d *daemon) berth(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
	defer cancel()
	return d.berthIn(ctx, strings.NewReader(""), args...)
}

func (d *daemon) berthIn(ctx context.Context, in io.Reader, args ...string) (string, string, int) {
	var out bytes.Buffer
	errs, code := d.berthTo(ctx, in, &out, args...)
	return out.String(), errs, code
}

func (d *daemon) berthTo(ctx context.Context, in io.Reader, out io.Writer, args ...string) (string, int) {
	var errs bytes.Buffer
	root := New("v-test")
	root.SetArgs(append([]string{"--socket", "unix://" + d.socket}, args...))
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(&errs)
	code := exitCode(root.ExecuteContext(ctx), &errs)
	return errs.String(), code
}

// until waits until f holds, or so long that it never will: what needs it then says what is amiss.
func until(f func() bool) {
	for end := time.Now().Add(timeouts.For(time.Minute)); !f() && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
}

func (d *daemon) called(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.calls, name)
}

// forget has a call not have been made.
func (d *daemon) forget(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = slices.DeleteFunc(d.calls, func(c string) bool { return c == name })
}

func gone(id string) error { return status.Errorf(codes.NotFound, "%s is not there", id) }

func (d *daemon) container(id string) *runtimeapi.ContainerStatus {
	for _, c := range d.containers {
		if c.Id == id {
			return c
		}
	}
	return nil
}

// addPod adds a pod as a kubelet would have made it.
func (d *daemon) addPod(id, name, namespace string) *runtimeapi.PodSandbox {
	p := &runtimeapi.PodSandbox{
		Id: id, Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: namespace, Uid: "u" + id[:4]},
		CreatedAt: time.Now().Add(-3*time.Hour - time.Duration(len(d.pods))*time.Second).UnixNano()}
	d.pods = append(d.pods, p)
	return p
}

func (d *daemon) addContainer(id, pod, name string, attempt uint32,
	state runtimeapi.ContainerState) *runtimeapi.ContainerStatus {
	c := &runtimeapi.ContainerStatus{Id: id, Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
		State: state,
		Image: &runtimeapi.ImageSpec{UserSpecifiedImage: "img:1"}, CreatedAt: time.Now().Add(-90 * time.Minute).UnixNano()}
	d.containers = append(d.containers, c)
	d.podOf[id] = pod
	return c
}

func (d *daemon) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (
	*runtimeapi.ListPodSandboxResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &runtimeapi.ListPodSandboxResponse{Items: slices.Clone(d.pods)}, nil
}

func (d *daemon) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (
	*runtimeapi.PodSandboxStatusResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.pods {
		if p.Id == req.PodSandboxId {
			return &runtimeapi.PodSandboxStatusResponse{Info: map[string]string{"info": cmp.Or(d.stuck,
				infoOf(d.configs[p.Id]))},
				Status: &runtimeapi.PodSandboxStatus{Id: p.Id, State: p.State, Metadata: p.Metadata,
					Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.1.2.3"}}}, nil
		}
	}
	return nil, gone(req.PodSandboxId)
}

// infoOf is what a verbose status says of the request for a pod.
func infoOf(c *runtimeapi.PodSandboxConfig) string {
	data, _ := protojson.Marshal(c)
	return `{"config": ` + string(data) + `}`
}

func infoOfContainer(c *runtimeapi.ContainerConfig) string {
	if c == nil {
		return `{"pid": 42}`
	}
	data, _ := protojson.Marshal(c)
	return `{"pid": 42, "config": ` + string(data) + `}`
}

func (d *daemon) RunPodSandbox(_ context.Context, req *runtimeapi.RunPodSandboxRequest) (
	*runtimeapi.RunPodSandboxResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, c := range d.configs {
		there := slices.ContainsFunc(d.pods, func(p *runtimeapi.PodSandbox) bool { return p.Id == id })
		if there && proto.Equal(c, req.Config) {
			return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
		}
	}
	id := fmt.Sprintf("%064x", 0xb0000+len(d.configs))
	d.configs[id] = req.Config
	d.pods = append(d.pods, &runtimeapi.PodSandbox{Id: id, Metadata: req.Config.Metadata, Labels: req.Config.Labels,
		Annotations: req.Config.Annotations, RuntimeHandler: req.RuntimeHandler})
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (d *daemon) StopPodSandbox(
	_ context.Context, req *runtimeapi.StopPodSandboxRequest,
) (*runtimeapi.StopPodSandboxResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.pods {
		if p.Id == req.PodSandboxId {
			p.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		}
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (d *daemon) RemovePodSandbox(_ context.Context, req *runtimeapi.RemovePodSandboxRequest) (
	*runtimeapi.RemovePodSandboxResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods = slices.DeleteFunc(d.pods, func(p *runtimeapi.PodSandbox) bool { return p.Id == req.PodSandboxId })
	d.containers = slices.DeleteFunc(d.containers, func(c *runtimeapi.ContainerStatus) bool {
		return d.podOf[c.Id] == req.PodSandboxId
	})
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (d *daemon) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (
	*runtimeapi.ListContainersResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	resp := &runtimeapi.ListContainersResponse{}
	for _, c := range d.containers {
		if want := req.GetFilter().GetState(); want == nil || want.State == c.State {
			resp.Containers = append(resp.Containers,
				&runtimeapi.Container{Id: c.Id, PodSandboxId: d.podOf[c.Id], Metadata: c.Metadata,
					State: c.State, Labels: c.Labels, Image: c.Image, ImageRef: c.ImageRef, ImageId: c.ImageId,
					CreatedAt: c.CreatedAt})
		}
	}
	return resp, nil
}

func (d *daemon) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (
	*runtimeapi.ContainerStatusResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.container(req.ContainerId)
	if c == nil {
		return nil, gone(req.ContainerId)
	}
	answer := runtimeapi.ContainerStatus{Id: c.Id, Metadata: c.Metadata, State: c.State, ExitCode: c.ExitCode,
		Reason:  c.Reason,
		Message: c.Message, LogPath: c.LogPath, CreatedAt: c.CreatedAt, FinishedAt: c.FinishedAt}
	text := infoOfContainer(d.requests[c.Id])
	if d.limitedLogs {
		text = strings.TrimSuffix(text, "}") + `, "log": {"rate": 1024}}`
	}
	if c.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		text = strings.TrimSuffix(text, "}") + fmt.Sprintf(`, "logged": %t}`, !d.unlogged)
	}
	info := map[string]string{"info": text}
	return &runtimeapi.ContainerStatusResponse{Status: &answer, Info: info}, nil
}

func (d *daemon) CreateContainer(_ context.Context, req *runtimeapi.CreateContainerRequest) (
	*runtimeapi.CreateContainerResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, c := range d.requests {
		if d.podOf[id] == req.PodSandboxId && proto.Equal(c, req.Config) && d.container(id) != nil {
			return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
		}
	}
	id := fmt.Sprintf("%064x", 0xc0000+len(d.requests))
	d.requests[id] = req.Config
	c := d.addContainer(id, req.PodSandboxId, req.Config.Metadata.Name, req.Config.Metadata.Attempt,
		runtimeapi.ContainerState_CONTAINER_CREATED)
	c.LogPath = filepath.Join(req.SandboxConfig.LogDirectory, req.Config.LogPath)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

func (d *daemon) StartContainer(_ context.Context, req *runtimeapi.StartContainerRequest) (
	*runtimeapi.StartContainerResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.container(req.ContainerId)
	c.State = runtimeapi.ContainerState_CONTAINER_RUNNING
	l := &life{path: c.LogPath, stop: d.lifeOf(c.Id)}
	if !isClosed(d.started) {
		close(d.started)
	}
	behave := d.behave // of this container: a test may say another one for the next
	go func() {
		code := behave(l)
		d.mu.Lock()
		defer d.mu.Unlock()
		c.State, c.ExitCode, c.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, code, time.Now().UnixNano()
	}()
	return &runtimeapi.StartContainerResponse{}, nil
}

var lives sync.Map // container id of a daemon -> chan struct{}

func (d *daemon) lifeOf(id string) chan struct{} {
	v, _ := lives.LoadOrStore(d.socket+id, make(chan struct{}))
	return v.(chan struct{})
}

func (d *daemon) StopContainer(_ context.Context, req *runtimeapi.StopContainerRequest) (
	*runtimeapi.StopContainerResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if stop := d.lifeOf(req.ContainerId); !isClosed(stop) {
		close(stop)
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

func (d *daemon) RemoveContainer(_ context.Context, req *runtimeapi.RemoveContainerRequest) (
	*runtimeapi.RemoveContainerResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.containers = slices.DeleteFunc(d.containers, func(c *runtimeapi.ContainerStatus) bool {
		return c.Id == req.ContainerId
	})
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (d *daemon) UpdateContainerResources(
	_ context.Context, req *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.updated == nil {
		d.updated = map[string]*runtimeapi.LinuxContainerResources{}
	}
	d.updated[req.ContainerId] = req.Linux
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

func (d *daemon) RuntimeConfig(
	context.Context, *runtimeapi.RuntimeConfigRequest,
) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{}}, nil // SYSTEMD is 0
}

func (d *daemon) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	info := map[string]string{"network": d.network}
	conditions := []*runtimeapi.RuntimeCondition{
		{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Reason: "NoConf", Message: "nothing in net.d"},
	}
	return &runtimeapi.StatusResponse{Info: info, Status: &runtimeapi.RuntimeStatus{Conditions: conditions}}, nil
}

func (d *daemon) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &runtimeapi.ListImagesResponse{Images: slices.Clone(d.images)}, nil
}

func (d *daemon) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (
	*runtimeapi.ImageStatusResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, i := range d.images {
		if i.Id == req.Image.Image || slices.Contains(slices.Concat(i.RepoTags, i.RepoDigests), req.Image.Image) {
			return &runtimeapi.ImageStatusResponse{Image: i}, nil
		}
	}
	return &runtimeapi.ImageStatusResponse{}, nil
}

// ImageFsInfo counts the layers of the images that are there.
func (d *daemon) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sum, seen := d.kept, map[string]bool{}
	for _, i := range d.details {
		there := slices.ContainsFunc(d.images, func(r *runtimeapi.Image) bool { return i.ID == r.Id })
		for _, l := range i.Layers {
			if there && !seen[l.ID] {
				sum += l.Disk
				seen[l.ID] = true
			}
		}
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems: []*runtimeapi.FilesystemUsage{{UsedBytes: &runtimeapi.UInt64Value{Value: sum}}}}, nil
}

func (d *daemon) RemoveImage(_ context.Context, req *runtimeapi.RemoveImageRequest) (
	*runtimeapi.RemoveImageResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.images = slices.DeleteFunc(d.images, func(i *runtimeapi.Image) bool { return i.Id == req.Image.Image })
	return &runtimeapi.RemoveImageResponse{}, nil
}

// adminDaemon is the other service of the daemon.
type adminDaemon struct{ *daemon }

func (a *adminDaemon) Reload(context.Context) (*admin.ReloadResponse, error) {
	return &admin.ReloadResponse{
		Changes: []admin.Change{{Key: "log_level", Old: `"info"`, New: `"debug"`},
			{Key: "root", Old: `"/a"`, New: `"/b"`, Restart: true}}}, nil
}
func (a *adminDaemon) Info(context.Context) (*admin.InfoResponse, error) { return &a.info, nil }

func (a *adminDaemon) Pull(_ context.Context, req *admin.PullRequest, send func(*admin.PullEvent) error) error {
	a.mu.Lock()
	a.pulls = append(a.pulls, *req)
	a.mu.Unlock()
	if len(a.pulled) == 0 {
		return status.Errorf(codes.NotFound, "RegistryUnavailable: no %s for %q", req.Reference, req.Username+req.Password)
	}
	for i := range a.pulled {
		if err := send(&a.pulled[i]); err != nil {
			return err
		}
	}
	return a.pullFails
}

func (a *adminDaemon) Pulls(_ context.Context, send func(*admin.Underway) error) error {
	for i := range a.underway {
		if err := send(&a.underway[i]); err != nil {
			return err
		}
	}
	return a.refuse["Pulls"]
}

func (a *adminDaemon) Import(_ context.Context, r io.Reader, send func(*admin.PullEvent) error) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return send(&admin.PullEvent{Image: fmt.Sprintf("sha256:%d-bytes", len(data)), Names: []string{"a:1"}})
}

func (a *adminDaemon) Export(_ context.Context, req *admin.ExportRequest, w io.Writer,
	send func(*admin.PullEvent) error) error {
	_ = send(&admin.PullEvent{Layer: "sha256:1", Phase: "exporting", Done: 1, Total: 2})
	fmt.Fprintf(w, "%v %s %v", req.Images, req.Format, req.Compress)
	return a.exportFails
}

func (a *adminDaemon) Images(_ context.Context, req *admin.ImagesRequest, send func(*admin.ImageDetail) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.details {
		there := slices.ContainsFunc(a.images, func(i *runtimeapi.Image) bool { return i.Id == d.ID })
		if !there || len(req.Images) > 0 && !slices.Contains(req.Images, d.ID) {
			continue
		}
		if !req.Config {
			d.Config = nil
		}
		if err := send(&d); err != nil {
			return err
		}
	}
	return nil
}

func (a *adminDaemon) Attach(_ context.Context, _ *admin.AttachRequest, recv func() (*admin.AttachInput, error),
	send func(*admin.AttachOutput) error) error {
	return a.attach(recv, send)
}

func (a *adminDaemon) Signal(_ context.Context, req *admin.SignalRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.signals = append(a.signals, *req)
	return a.refuse["Signal "+req.Signal]
}

func (a *adminDaemon) Sweep(context.Context) error { return nil }

func (a *adminDaemon) Tag(_ context.Context, req *admin.TagRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if req.Image == "" {
		for _, i := range a.images {
			i.RepoTags = slices.DeleteFunc(i.RepoTags, func(tag string) bool { return tag == req.Name })
		}
		return nil
	}
	a.tags = append(a.tags, *req)
	return a.refuse["Tag "+req.Name]
}

// Exec says what it was asked for, unless a test has a daemon that does something else.
func (a *adminDaemon) Exec(ctx context.Context, req *admin.ExecRequest, recv func() (*admin.AttachInput, error),
	send func(*admin.AttachOutput) error) error {
	a.mu.Lock()
	a.execs = append(a.execs, *req)
	a.mu.Unlock()
	if a.exec != nil {
		return a.exec(ctx, req, recv, send)
	}
	if req.Detach {
		return nil
	}
	return send(&admin.AttachOutput{Stdout: fmt.Appendf(nil, "%s %q\n", short(req.Container), req.Command),
		Exit: new(int)})
}

func (a *adminDaemon) PortForward(_ context.Context, req *admin.PortForwardRequest,
	recv func() (*admin.PortData, error), send func(*admin.PortData) error) error {
	if a.forward != nil {
		return a.forward(req)
	}
	if req.Port != 80 {
		return fmt.Errorf("nobody listens at port %d", req.Port)
	}
	_ = send(&admin.PortData{})
	for {
		d, err := recv()
		if err != nil {
			return err
		}
		if err := send(d); err != nil || d.End {
			return err
		}
	}
}

func (a *adminDaemon) Check(_ context.Context, req *admin.CheckRequest, send func(*admin.Finding) error) error {
	for _, f := range a.found {
		f.Repaired = req.Repair && f.Image != ""
		if err := send(&f); err != nil {
			return err
		}
	}
	return nil
}
