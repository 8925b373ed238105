package e2e

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// client speaks to the two services of a node's daemon. It gives whole answers, of which the kubelet's own gives parts.
type client struct {
	v1.RuntimeServiceClient
	images v1.ImageServiceClient
}

func (r rig) client() client {
	r.Helper()
	conn, err := grpc.NewClient("unix:"+r.n.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	r.ok(err)
	r.Cleanup(func() { _ = conn.Close() })
	return client{v1.NewRuntimeServiceClient(conn), v1.NewImageServiceClient(conn)}
}

// questions asks a node, and gives all answers to the survey.
type questions struct {
	*answerSurvey
	client
}

func (a *answerSurvey) connect() questions { return questions{a, a.client()} }

// note takes an answer, and an error as the end of the test.
func note[T proto.Message](q questions, answer T, err error) T {
	q.Helper()
	q.ok(err)
	q.take(answer)
	return answer
}

// drain takes all messages of a stream.
func drain[R any, P interface {
	*R
	proto.Message
}](q questions, stream grpc.ServerStreamingClient[R], err error) {
	q.Helper()
	q.ok(err)
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		q.ok(err)
		q.take(P(m))
	}
}

// busyPod makes a pod with a container that uses all that is counted, and one that has ended; and a pod that is
// stopped.
func (q questions) busyPod(handler string) *ctr {
	q.Helper()
	dir := q.T.TempDir() // before the pod, which is to be gone when it is removed
	stopped := q.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-stopped" })
	q.ok(q.n.Runtime.StopPodSandbox(ctx(), stopped.id))

	config := q.n.Pod(unique(q.T), func(c *v1.PodSandboxConfig) {
		c.Labels, c.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
	})
	run, err := q.RunPodSandbox(ctx(), &v1.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	p := &pod{q.rig, note(q, run, err).PodSandboxId, config}
	q.Cleanup(p.remove)

	work := "head -c 2000000 /dev/zero > /tmp/f; echo up; while :; do head -c 1000000 /tmp/f > /data/g; done"
	busy := busybox("main", work, mount(dir, "/data"), func(c *v1.ContainerConfig) {
		c.Labels, c.Annotations = map[string]string{"e": "f"}, map[string]string{"g": "h"}
		c.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuPeriod: 100000, CpuQuota: 20000}
		c.Linux.SecurityContext.RunAsUser = &v1.Int64Value{Value: 1000}
		c.Linux.SecurityContext.SupplementalGroups = []int64{4444}
	})
	q.ok(os.Chown(dir, 1000, 1000))
	create := &v1.CreateContainerRequest{PodSandboxId: p.id, Config: busy, SandboxConfig: config}
	made, err := q.CreateContainer(ctx(), create)
	c := &ctr{p, note(q, made, err).ContainerId, filepath.Join(config.LogDirectory, busy.LogPath)}
	q.ok(q.n.Runtime.StartContainer(ctx(), c.cid))
	c.logged("up")
	p.start(busybox("ended", "exit 7")).finish()
	// A second interface beside the one of the node's network.
	in := netlink.NsPid(c.pidOf(c.cid))
	q.ok(netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "more0", Namespace: in}, PeerName: "more1", PeerNamespace: in,
	}))
	return c
}

// ask asks for all but stats.
func (q questions) ask(c *ctr) {
	q.Helper()
	spec := &v1.ImageSpec{Image: ref("user-app:latest")}
	version, err := q.Version(ctx(), &v1.VersionRequest{})
	note(q, version, err)
	status, err := q.Status(ctx(), &v1.StatusRequest{Verbose: true})
	note(q, status, err)
	config, err := q.RuntimeConfig(ctx(), &v1.RuntimeConfigRequest{})
	note(q, config, err)
	sandbox, err := q.PodSandboxStatus(ctx(), &v1.PodSandboxStatusRequest{PodSandboxId: c.id, Verbose: true})
	note(q, sandbox, err)
	container, err := q.ContainerStatus(ctx(), &v1.ContainerStatusRequest{ContainerId: c.cid, Verbose: true})
	note(q, container, err)
	sandboxes, err := q.ListPodSandbox(ctx(), &v1.ListPodSandboxRequest{})
	note(q, sandboxes, err)
	containers, err := q.ListContainers(ctx(), &v1.ListContainersRequest{})
	note(q, containers, err)
	output, err := q.ExecSync(ctx(), &v1.ExecSyncRequest{ContainerId: c.cid, Cmd: sh("echo a; echo b >&2; exit 9")})
	note(q, output, err)
	command, err := q.Exec(ctx(), &v1.ExecRequest{ContainerId: c.cid, Cmd: sh("true"), Stdout: true})
	note(q, command, err)
	attachment, err := q.Attach(ctx(), &v1.AttachRequest{ContainerId: c.cid, Stdout: true})
	note(q, attachment, err)
	forward, err := q.PortForward(ctx(), &v1.PortForwardRequest{PodSandboxId: c.id})
	note(q, forward, err)
	pulled, err := q.images.PullImage(ctx(), &v1.PullImageRequest{Image: spec})
	note(q, pulled, err)
	image, err := q.images.ImageStatus(ctx(), &v1.ImageStatusRequest{Image: spec, Verbose: true})
	note(q, image, err)
	images, err := q.images.ListImages(ctx(), &v1.ListImagesRequest{})
	note(q, images, err)
	podStream, err := q.StreamPodSandboxes(ctx(), &v1.StreamPodSandboxesRequest{})
	drain(q, podStream, err)
	containerStream, err := q.StreamContainers(ctx(), &v1.StreamContainersRequest{})
	drain(q, containerStream, err)
	imageStream, err := q.images.StreamImages(ctx(), &v1.StreamImagesRequest{})
	drain(q, imageStream, err)
	q.askStats(c)
}

// askStats asks for what changes: stats, metrics, file systems.
func (q questions) askStats(c *ctr) {
	q.Helper()
	container, err := q.ContainerStats(ctx(), &v1.ContainerStatsRequest{ContainerId: c.cid})
	note(q, container, err)
	containers, err := q.ListContainerStats(ctx(), &v1.ListContainerStatsRequest{})
	note(q, containers, err)
	sandbox, err := q.PodSandboxStats(ctx(), &v1.PodSandboxStatsRequest{PodSandboxId: c.id})
	note(q, sandbox, err)
	sandboxes, err := q.ListPodSandboxStats(ctx(), &v1.ListPodSandboxStatsRequest{})
	note(q, sandboxes, err)
	descriptors, err := q.ListMetricDescriptors(ctx(), &v1.ListMetricDescriptorsRequest{})
	note(q, descriptors, err)
	metrics, err := q.ListPodSandboxMetrics(ctx(), &v1.ListPodSandboxMetricsRequest{})
	note(q, metrics, err)
	disks, err := q.images.ImageFsInfo(ctx(), &v1.ImageFsInfoRequest{})
	note(q, disks, err)
	containerStream, err := q.StreamContainerStats(ctx(), &v1.StreamContainerStatsRequest{})
	drain(q, containerStream, err)
	podStream, err := q.StreamPodSandboxStats(ctx(), &v1.StreamPodSandboxStatsRequest{})
	drain(q, podStream, err)
	metricStream, err := q.StreamPodSandboxMetrics(ctx(), &v1.StreamPodSandboxMetricsRequest{})
	drain(q, metricStream, err)
	status, err := q.Status(ctx(), &v1.StatusRequest{})
	note(q, status, err) // which handlers have user namespaces is found out in the background
}

// unstarted has a container whose start fails, because a directory stands where its log belongs, and takes its status.
func (q questions) unstarted(c *ctr) {
	q.Helper()
	victim := c.create(busybox("unstarted", "true"))
	q.ok(os.MkdirAll(victim.log, 0o755))
	if err := q.n.Runtime.StartContainer(ctx(), victim.cid); err == nil {
		q.Error("a container is started without its log")
	}
	status, err := q.ContainerStatus(ctx(), &v1.ContainerStatusRequest{ContainerId: victim.cid})
	note(q, status, err)
}

// withoutNetwork takes the node's network configuration away, and takes a status meanwhile.
func (q questions) withoutNetwork() {
	q.Helper()
	conf := filepath.Join(q.n.CNI, "10-bt.conflist")
	q.ok(os.Rename(conf, conf+".away"))
	q.eventually("the network is not ready", func() bool { return !q.networkReady().Status })
	status, err := q.Status(ctx(), &v1.StatusRequest{})
	note(q, status, err)
	q.ok(os.Rename(conf+".away", conf))
	q.eventually("the network is ready", func() bool { return q.networkReady().Status })
}
