package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/timeouts"
)

// TestSupervised is a daemon whose service manager wants to hear from it.
func TestSupervised(t *testing.T) {
	cfg := place(t)
	name := filepath.Join(t.TempDir(), "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_PID", "")
	t.Setenv("WATCHDOG_USEC", "30000000")
	stop := start(t, cfg)
	next := func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(timeouts.For(time.Minute))); err != nil {
			t.Fatal(err)
		}
		var text [512]byte
		n, err := conn.Read(text[:])
		if err != nil {
			t.Fatal(err)
		}
		return string(text[:n])
	}
	if got, want := next(), "READY=1\nSTATUS=Serving CRI at "+cfg.Socket; got != want {
		t.Errorf("told %q first, want %q", got, want)
	}
	if got := next(); got != "WATCHDOG=1" { // which needs an answer of the daemon to itself
		t.Errorf("told %q while it serves", got)
	}
	stop()
	got := next()
	for got == "WATCHDOG=1" {
		got = next()
	}
	if !strings.HasPrefix(got, "STOPPING=1\n") {
		t.Errorf("told %q at its end", got)
	}
}

// TestAnswers wants a daemon that nobody can reach any more to be known as such.
func TestAnswers(t *testing.T) {
	cfg := place(t)
	stop := start(t, cfg)
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
		defer cancel()
		return answers(ctx, cfg.Socket)
	}
	if err := ask(); err != nil {
		t.Errorf("a daemon that serves: %v", err)
	}
	if err := os.Remove(cfg.Socket); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err == nil {
		t.Error("a daemon without its socket is taken for one that serves")
	}
	stop()
}

// manyPods has a list of pods that is longer than a client of gRPC takes unless it says more.
type manyPods struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func (manyPods) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{}, nil
}

func (manyPods) ListPodSandbox(
	_ context.Context, req *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	long := map[string]string{"a": strings.Repeat("x", 5<<20)}
	pod := &runtimeapi.PodSandbox{Id: strings.Repeat("a", 64), Annotations: long}
	if !strings.HasPrefix(pod.Id, req.GetFilter().GetId()) {
		return &runtimeapi.ListPodSandboxResponse{}, nil
	}
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{pod}}, nil
}

// TestAnswersWithManyPods wants a daemon to be known as one that serves whatever the size of its list of pods.
func TestAnswersWithManyPods(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(g, manyPods{})
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	if err := answers(t.Context(), path); err != nil {
		t.Error(err)
	}
}
