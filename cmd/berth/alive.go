package main

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// answers asks the daemon at socket what a kubelet asks all the time. It connects anew, as a kubelet does that starts:
// a daemon whose socket was removed is of no use.
func answers(ctx context.Context, socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	if _, err := client.Status(ctx, &runtimeapi.StatusRequest{}); err != nil {
		return fmt.Errorf("ask for the status: %w", err)
	}
	// No pod has this id. A list of all those of a full node is more than a client of gRPC takes.
	none := &runtimeapi.PodSandboxFilter{Id: "none"}
	if _, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: none}); err != nil {
		return fmt.Errorf("ask for the pods: %w", err)
	}
	return nil
}
