package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// buffer is written by the server's goroutines and read by the test.
type buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

// take returns the JSON lines so far and forgets them.
func (b *buffer) take(t *testing.T) []map[string]any {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var lines []map[string]any
	for d := json.NewDecoder(&b.data); ; {
		var line map[string]any
		if err := d.Decode(&line); err == io.EOF {
			b.data.Reset()
			return lines
		} else if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
}

// service answers some calls of CRI, each in its own way.
type service struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func (service) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "t"}, nil
}

func (service) StopPodSandbox(context.Context, *runtimeapi.StopPodSandboxRequest) (
	*runtimeapi.StopPodSandboxResponse, error) {
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (service) StartContainer(context.Context, *runtimeapi.StartContainerRequest) (
	*runtimeapi.StartContainerResponse, error) {
	return nil, status.Error(codes.FailedPrecondition, "it runs already")
}

func (service) ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest) (
	*runtimeapi.ContainerStatusResponse, error) {
	return nil, status.Error(codes.NotFound, "gone")
}

func (service) RunPodSandbox(_ context.Context, req *runtimeapi.RunPodSandboxRequest) (
	*runtimeapi.RunPodSandboxResponse, error) {
	if req.RuntimeHandler != "" {
		return runPod(nil), nil
	}
	return runPod(req.Config), nil
}

func (service) CreateContainer(context.Context, *runtimeapi.CreateContainerRequest) (
	*runtimeapi.CreateContainerResponse, error) {
	return &runtimeapi.CreateContainerResponse{ContainerId: "new-container"}, nil
}

func (service) RemoveContainer(context.Context, *runtimeapi.RemoveContainerRequest) (
	*runtimeapi.RemoveContainerResponse, error) {
	return nil, status.Error(codes.Internal, "remove: the disk is on fire")
}

func (service) RemovePodSandbox(context.Context, *runtimeapi.RemovePodSandboxRequest) (
	*runtimeapi.RemovePodSandboxResponse, error) {
	return nil, errors.New("no status at all")
}

func (service) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (
	*runtimeapi.ListContainersResponse, error) {
	time.Sleep(slow + 10*time.Millisecond)
	return &runtimeapi.ListContainersResponse{}, nil
}

// runPod panics when there is no pod.
func runPod(pod *runtimeapi.PodSandboxConfig) *runtimeapi.RunPodSandboxResponse {
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: "pod-of-" + pod.Metadata.Name}
}

func (service) GetContainerEvents(_ *runtimeapi.GetEventsRequest,
	s runtimeapi.RuntimeService_GetContainerEventsServer) error {
	if err := s.Send(&runtimeapi.ContainerEventResponse{ContainerId: "c"}); err != nil {
		return err
	}
	panic("in a stream")
}

type rig struct {
	client runtimeapi.RuntimeServiceClient
	log    *buffer
	ready  *atomic.Bool
}

func serve(t *testing.T) rig {
	t.Helper()
	r := rig{log: &buffer{}, ready: &atomic.Bool{}}
	level := new(slog.LevelVar)
	level.Set(slog.LevelDebug)
	unary, stream := Interceptors(Logger(r.log, "json", level), r.ready.Load, nil)
	server := grpc.NewServer(grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream))
	runtimeapi.RegisterRuntimeServiceServer(server, service{})
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-served
	})
	r.client = runtimeapi.NewRuntimeServiceClient(conn)
	return r
}

func TestUnavailableUntilReady(t *testing.T) {
	r := serve(t)
	if _, err := r.client.Version(t.Context(), &runtimeapi.VersionRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("before ready: %v", err)
	}
	events, err := r.client.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err == nil {
		_, err = events.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a stream before ready: %v", err)
	}
	r.ready.Store(true)
	if v, err := r.client.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil || v.RuntimeName != "t" {
		t.Errorf("when ready: %v, %v", v, err)
	}
}

func TestCallsAreLogged(t *testing.T) {
	r := serve(t)
	r.ready.Store(true)
	ctx := t.Context()
	pod := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "prod", Uid: "u1"}}
	for _, c := range []struct {
		call func() error
		code codes.Code
		want map[string]string // of the last line
	}{
		{func() error { _, err := r.client.Version(ctx, &runtimeapi.VersionRequest{}); return err },
			codes.OK, map[string]string{"level": "DEBUG", "method": "Version", "code": "OK"}},
		{func() error {
			_, err := r.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: "p1"})
			return err
		}, codes.OK, map[string]string{"level": "INFO", "method": "StopPodSandbox", "pod": "p1"}},
		{func() error {
			_, err := r.client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: "c1"})
			return err
		}, codes.FailedPrecondition,
			map[string]string{"level": "WARN", "container": "c1", "code": "FailedPrecondition", "error": "it runs already"}},
		{func() error {
			_, err := r.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: "c2"})
			return err
		}, codes.NotFound, map[string]string{"level": "DEBUG", "container": "c2"}},
		{func() error {
			_, err := r.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod, RuntimeHandler: "runc"})
			return err
		}, codes.Internal, map[string]string{"level": "ERROR", "method": "RunPodSandbox", "namespace": "prod", "name": "web",
			"uid": "u1", "handler": "runc",
			"error": "/runtime.v1.RuntimeService/RunPodSandbox: berth has a bug here, its log has the stack: runtime error: " +
				"invalid memory address or nil pointer dereference"}},
		{func() error {
			_, err := r.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
			return err
		}, codes.OK, map[string]string{"level": "INFO", "name": "web", "pod": "pod-of-web"}},
		{func() error {
			_, err := r.client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: "p3"})
			return err
		}, codes.OK, map[string]string{"level": "INFO", "pod": "p3", "container": "new-container"}},
		{func() error {
			_, err := r.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: "c3"})
			return err
		}, codes.Internal, map[string]string{"level": "ERROR", "container": "c3", "error": "remove: the disk is on fire"}},
		{func() error {
			_, err := r.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: "p4"})
			return err
		}, codes.Unknown, map[string]string{"level": "ERROR", "pod": "p4", "error": "no status at all"}},
		{func() error { _, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{}); return err },
			codes.OK, map[string]string{"level": "INFO", "method": "ListContainers"}},
	} {
		if err := c.call(); status.Code(err) != c.code {
			t.Errorf("%v: got %v", c.want, err)
		}
		lines := r.log.take(t)
		if len(lines) == 0 {
			t.Errorf("%v: nothing was logged", c.want)
			continue
		}
		last := lines[len(lines)-1]
		took, ok := last["took"].(float64)
		if !ok || took <= 0 {
			t.Errorf("took is %v", last["took"])
		}
		for key, want := range c.want {
			if want == "DEBUG" && took > float64(slow) { // it was held up
				want = "INFO"
			}
			if last[key] != want {
				t.Errorf("%s is %v, wanted %s, in %v", key, last[key], want, last)
			}
		}
	}
}

func TestPanics(t *testing.T) {
	r := serve(t)
	r.ready.Store(true)
	_, err := r.client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{})
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "nil pointer") {
		t.Errorf("got %v", err)
	}
	wantStack(t, r.log.take(t), "service.RunPodSandbox")
	events, err := r.client.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := events.Recv(); err != nil || e.ContainerId != "c" {
		t.Errorf("before the panic: %v, %v", e, err)
	}
	if _, err := events.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("a stream: %v", err)
	}
	wantStack(t, r.log.take(t), "service.GetContainerEvents")
	if _, err := r.client.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
		t.Errorf("after two panics: %v", err)
	}
}

func wantStack(t *testing.T, lines []map[string]any, function string) {
	t.Helper()
	for _, line := range lines {
		if stack, _ := line["stack"].(string); strings.Contains(stack, function) {
			return
		}
	}
	t.Errorf("no stack names %s in %v", function, lines)
}

func TestLevelOf(t *testing.T) {
	for _, c := range []struct {
		method string
		code   codes.Code
		took   time.Duration
		want   slog.Level
	}{
		{"ListPodSandbox", codes.OK, slow, slog.LevelDebug},
		{"ListPodSandbox", codes.OK, slow + 1, slog.LevelInfo},
		{"PodSandboxStatus", codes.NotFound, slow, slog.LevelDebug},
		{"PodSandboxStatus", codes.NotFound, slow + 1, slog.LevelInfo},
		{"PodSandboxStatus", codes.DeadlineExceeded, slow + 1, slog.LevelWarn},
		{"Status", codes.Internal, 0, slog.LevelError},
		{"GetContainerEvents", codes.OK, time.Hour, slog.LevelDebug},
		{"StopContainer", codes.OK, 0, slog.LevelInfo},
		{"StopContainer", codes.NotFound, 0, slog.LevelWarn},
		{"StopContainer", codes.Canceled, time.Hour, slog.LevelWarn},
		{"StopContainer", codes.Unknown, 0, slog.LevelError},
		{"PullImage", codes.DataLoss, 0, slog.LevelError},
	} {
		if got := levelOf("/runtime.v1.RuntimeService/"+c.method, c.code, c.took); got != c.want {
			t.Errorf("%s, %s after %v: %s, wanted %s", c.method, c.code, c.took, got, c.want)
		}
	}
}

// TestRefusalsAreToldOnceASecond makes calls that a limit refuses, and others that fail: of the first kind one line a
// second and method is written, with how many went before.
func TestRefusalsAreToldOnceASecond(t *testing.T) {
	var out buffer
	log, began := slog.New(slog.NewJSONHandler(&out, nil)), time.Now()
	unary, _ := Interceptors(log, func() bool { return true }, nil)
	call := func(method string, err error) {
		info := &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.RuntimeService/" + method}
		_, _ = unary(t.Context(), nil, info, func(context.Context, any) (any, error) { return nil, err })
	}
	refused := fail.About(fail.Detail{Limit: "sessions"}, "%w", fail.New(errdefs.ErrResourceExhausted, "too many"))
	for range 1000 {
		call("Exec", refused)
		call("Attach", refused)
	}
	for range 3 {
		call("StopContainer", errors.New("broken"))
	}
	lines := map[any]int{}
	for _, line := range out.take(t) {
		lines[line["method"]]++
	}
	seconds := int(time.Since(began)/time.Second) + 1
	if lines["Exec"] < 1 || lines["Attach"] < 1 || lines["Exec"] > seconds || lines["Attach"] > seconds {
		t.Errorf("of calls that were refused in %d seconds: %v", seconds, lines)
	}
	if n := lines["StopContainer"]; n != 3 {
		t.Errorf("%d lines of calls that failed, want 3", n)
	}
}

func TestReads(t *testing.T) {
	reads := map[string]bool{
		"Version": true, "Status": true, "PodSandboxStatus": true, "ListPodSandbox": true, "ContainerStatus": true,
		"ListContainers": true, "ListContainerStats": true, "ContainerStats": true, "PodSandboxStats": true,
		"RuntimeConfig": true,
		"ListImages":    true, "ImageStatus": true, "ImageFsInfo": true, "GetContainerEvents": true,
		"ListMetricDescriptors": true,
		"RunPodSandbox":         false, "StopPodSandbox": false, "RemovePodSandbox": false, "CreateContainer": false,
		"StartContainer": false, "StopContainer": false, "RemoveContainer": false, "ExecSync": false, "Exec": false,
		"Attach":      false,
		"PortForward": false, "PullImage": false, "RemoveImage": false, "ReopenContainerLog": false,
		"UpdateRuntimeConfig":      false,
		"UpdateContainerResources": false, "CheckpointContainer": false,
	}
	for method, want := range reads {
		if got := isRead("/runtime.v1.RuntimeService/" + method); got != want {
			t.Errorf("%s: read is %v", method, got)
		}
	}
}

func TestLevels(t *testing.T) {
	var level slog.LevelVar
	var out strings.Builder
	log := Logger(&out, "text", &level)
	for _, text := range []string{"debug", "info", "warn", "error"} {
		l, err := ParseLevel(text)
		if err != nil || !strings.EqualFold(l.String(), text) {
			t.Errorf("%s: %v, %v", text, l, err)
		}
		level.Set(l)
		out.Reset()
		log.Log(t.Context(), l-1, "quiet")
		log.Log(t.Context(), l, "loud")
		if got := out.String(); strings.Contains(got, "quiet") || !strings.Contains(got, "msg=loud") {
			t.Errorf("at %s: %s", text, got)
		}
	}
	for _, text := range []string{"", "INFO", "trace"} {
		if _, err := ParseLevel(text); err == nil {
			t.Errorf("level %q is accepted", text)
		}
	}
}

func TestTimeline(t *testing.T) {
	var line Timeline
	line.Begin(time.Now().Add(-time.Second))
	line.Mark("records")
	time.Sleep(5 * time.Millisecond)
	line.Mark("serving")
	steps := line.Steps()
	if len(steps) != 2 || steps[0].Name != "records" || steps[1].Name != "serving" {
		t.Fatalf("steps %v", steps)
	}
	if steps[0].Took < time.Second || steps[0].Took != steps[0].At {
		t.Errorf("the first took %v until %v", steps[0].Took, steps[0].At)
	}
	if steps[1].Took < 5*time.Millisecond || steps[1].At != steps[0].At+steps[1].Took {
		t.Errorf("the second took %v until %v", steps[1].Took, steps[1].At)
	}
	var none Timeline
	none.Mark("first")
	if s := none.Steps(); s[0].At != 0 {
		t.Errorf("without Begin the first mark is at %v", s[0].At)
	}
}
