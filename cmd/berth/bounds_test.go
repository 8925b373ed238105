package main

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/config"
)

// client is a client of the daemon of cfg with a connection of its own.
func client(t *testing.T, cfg *config.Config) runtimeapi.RuntimeServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+cfg.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return runtimeapi.NewRuntimeServiceClient(conn)
}

// wantRefused wants err to be of a code, and to say words.
func wantRefused(t *testing.T, err error, code codes.Code, words string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), words) {
		t.Errorf("got %.300v, wanted %s: %s", err, code, words)
	}
}

// TestRequestsAreBounded asks a daemon for pods that are too much, by entries, by a text, and by a message as a whole.
func TestRequestsAreBounded(t *testing.T) {
	cfg := place(t)
	start(t, cfg)
	c := client(t, cfg)
	run := func(change func(*runtimeapi.PodSandboxConfig)) error {
		p := &runtimeapi.PodSandboxConfig{Labels: map[string]string{},
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"}}
		change(p)
		_, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: p})
		return err
	}
	wantRefused(t, run(func(p *runtimeapi.PodSandboxConfig) {
		for i := range 70_000 {
			p.Labels[fmt.Sprint(i)] = ""
		}
	}), codes.ResourceExhausted, "config.labels: entries of a list or map in a request of CRI: 70000, more than the 65536")
	wantRefused(t, run(func(p *runtimeapi.PodSandboxConfig) { p.Hostname = strings.Repeat("x", 5000) }),
		codes.InvalidArgument, "config.hostname: length of a path")
	wantRefused(t, run(func(p *runtimeapi.PodSandboxConfig) { p.Hostname = strings.Repeat("x", 17<<20) }),
		codes.ResourceExhausted, "larger than max")
	list, err := c.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%d pods, %v", len(list.GetItems()), err)
	}
}
