package e2e

import (
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestStatsOfStrangeInterfaces has a pod name an interface by bytes that are no UTF-8, and make others as Docker in a
// pod makes them: the lists and the streams have that pod, and a pod beside it, and tell the interfaces that cAdvisor
// tells.
func TestStatsOfStrangeInterfaces(t *testing.T) {
	each(t, func(r rig) {
		plain, strange := r.pod(), r.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-strange" })
		c := strange.start(busybox("main", `ip link add "$(printf '\377')" type veth && ip link add vetha0b1 type veth &&
			ip link add docker0 type veth && echo made; sleep 1000`, caps([]string{"NET_ADMIN"}, nil)))
		c.logged("made")
		both := func(what string, ids []string, err error) {
			r.Helper()
			if err != nil || !slices.Contains(ids, plain.id) || !slices.Contains(ids, strange.id) {
				r.Errorf("%s: %v, of the pods %v", what, err, ids)
			}
		}
		stats, err := r.n.Runtime.ListPodSandboxStats(ctx(), nil)
		both("the stats", idsOf(stats), err)
		metrics, err := r.n.Runtime.ListPodSandboxMetrics(ctx())
		both("the metrics", idsOf(metrics), err)
		conn, err := grpc.NewClient("unix:"+r.n.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		r.ok(err)
		defer func() { _ = conn.Close() }()
		client := v1.NewRuntimeServiceClient(conn)
		pods, err := client.StreamPodSandboxStats(ctx(), &v1.StreamPodSandboxStatsRequest{})
		both("the stream", idsOf(collect(r, pods, err, (*v1.StreamPodSandboxStatsResponse).GetPodSandboxStats)), nil)
		var names []string
		for _, i := range strange.stats().Linux.Network.Interfaces {
			names = append(names, i.Name)
		}
		if !slices.Equal(names, []string{"eth0", "?"}) { // without those of veth*, the peers of the three among them
			r.Errorf("the interfaces are called %q", names)
		}
	})
}

// idsOf are the ids of the pods that a list is about.
func idsOf[T any](list []T) (ids []string) {
	for _, one := range list {
		switch one := any(one).(type) {
		case *v1.PodSandboxStats:
			ids = append(ids, one.GetAttributes().GetId())
		case *v1.PodSandboxMetrics:
			ids = append(ids, one.GetPodSandboxId())
		}
	}
	return ids
}
