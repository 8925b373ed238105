package main

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/supervisor"
)

// watch gives the service manager signs of life while the daemon answers at its socket what a kubelet asks all the time.
// A daemon that only holds its socket open is as good as none.
func watch(ctx context.Context, s *supervisor.Supervisor, socket string) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.Log.Error("the daemon cannot ask itself how it is, so the service manager will restart it", "error", err)
		return
	}
	defer conn.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	s.Watch(ctx, func(ctx context.Context) error {
		if _, err := client.Status(ctx, &runtimeapi.StatusRequest{}); err != nil {
			return fmt.Errorf("ask for the status: %w", err)
		}
		if _, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}); err != nil {
			return fmt.Errorf("ask for the pods: %w", err)
		}
		return nil
	})
}
