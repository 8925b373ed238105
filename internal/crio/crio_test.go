package crio

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/timeouts"
)

var id = strings.Repeat("ab", 32)

// runtime has one container, which is there from the third time on that it is asked for.
type runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	asked atomic.Int32
}

func (r *runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "berth"}, nil
}

func (r *runtime) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (
	*runtimeapi.ContainerStatusResponse, error) {
	if req.ContainerId != id || r.asked.Add(1) < 3 {
		return nil, fmt.Errorf("container %s: %w", req.ContainerId, errdefs.ErrNotFound)
	}
	return &runtimeapi.ContainerStatusResponse{
		Status: &runtimeapi.ContainerStatus{
			Id: id, Metadata: &runtimeapi.ContainerMetadata{Name: "web", Attempt: 2}, CreatedAt: 7,
			Image: &runtimeapi.ImageSpec{Image: "example.com/web:v1"}, ImageRef: "sha256:1", LogPath: "/l/2.log",
			Labels: map[string]string{
				"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "n", "io.kubernetes.pod.uid": "u",
			},
			Annotations: map[string]string{"a": "b"},
		},
		Info: map[string]string{"info": `{"pid": 42, "sandboxID": "s"}`},
	}, nil
}

func (r *runtime) PodSandboxStatus(context.Context, *runtimeapi.PodSandboxStatusRequest) (
	*runtimeapi.PodSandboxStatusResponse, error) {
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Network: &runtimeapi.PodSandboxNetworkStatus{
			Ip: "10.0.0.1", AdditionalIps: []*runtimeapi.PodIP{{Ip: "fd00::1"}},
		},
	}}, nil
}

// serve serves until the test ends, and checks that the server ends then.
func serve(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "crio.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	r, g := &runtime{}, grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(g, r)
	s := &Server{Containers: r, Images: "/images", Log: slog.New(slog.DiscardHandler), CRI: g.Serve}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		g.Stop()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// client asks as cAdvisor does.
func client(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}, Timeout: timeouts.For(20 * time.Second)}
}

func get(t *testing.T, c *http.Client, path string) (code int, body map[string]any) {
	t.Helper()
	resp, err := c.Get("http://crio" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, body
}

// TestAnswers has cAdvisor ask for a container while that is being created.
func TestAnswers(t *testing.T) {
	c := client(serve(t))
	defer c.CloseIdleConnections()
	want := map[string]any{"storage_driver": "overlay", "storage_root": "/images", "storage_image": "/images"}
	if code, got := get(t, c, "/info"); code != http.StatusOK || !reflect.DeepEqual(got, want) {
		t.Errorf("info: %d, %v", code, got)
	}
	want = map[string]any{
		"name": id, "pid": 42., "image": "example.com/web:v1", "image_ref": "sha256:1", "created_time": 7.,
		"labels": map[string]any{
			"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "n", "io.kubernetes.pod.uid": "u",
		},
		"annotations": map[string]any{"a": "b"}, "log_path": "/l/2.log", "sandbox": "s",
		"ip_addresses": []any{"10.0.0.1", "fd00::1"},
	}
	if code, got := get(t, c, "/containers/"+id); code != http.StatusOK || !reflect.DeepEqual(got, want) {
		t.Errorf("a container: %d, %v", code, got)
	}
	for _, path := range []string{"/containers/" + strings.Repeat("c", 64), "/containers/short", "/", "/containers/"} {
		if code, _ := get(t, c, path); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
}

// TestCRIAtTheSameSocket has clients that speak CRI beside cAdvisor, and beside some that say nothing.
func TestCRIAtTheSameSocket(t *testing.T) {
	socket := serve(t)
	for range 50 {
		silent, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(20*time.Second))
			defer cancel()
			v, err := runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{})
			if err != nil || v.RuntimeName != "berth" {
				t.Errorf("%v, %v", v, err)
			}
		})
		all.Go(func() {
			c := client(socket)
			defer c.CloseIdleConnections()
			if code, _ := get(t, c, "/info"); code != http.StatusOK {
				t.Errorf("info: %d", code)
			}
		})
	}
	all.Wait()
}
