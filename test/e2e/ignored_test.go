package e2e

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxConfig makes the CreateContainerRequest.sandbox_config from the configuration that the pod was made with.
type sandboxConfig = func(*v1.PodSandboxConfig) *v1.PodSandboxConfig

// madeOf makes a pod with a shared PID namespace and a container in it, and returns all that they became: the
// container's spec for the runtime, its limits, and who the pod's init runs as. What is named by ids is named alike.
func (r rig) madeOf(pods func(*v1.PodSandboxConfig), ctrs edit, sandbox sandboxConfig) string {
	r.Helper()
	p := r.pod(sharedPID, func(c *v1.PodSandboxConfig) {
		c.Metadata.Uid, c.LogDirectory = unique(r.T), r.n.Logs+"/"+unique(r.T)
		pods(c)
	})
	defer p.remove()
	config := p.as(busybox("main", "grep -E 'Uid|Gid|Groups' /proc/1/status; sleep 1000", ctrs))
	made, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, sandbox(p.config))
	r.ok(err)
	r.ok(r.n.Runtime.StartContainer(ctx(), made))
	c := &ctr{p, made, p.config.LogDirectory + "/" + config.LogPath}
	c.logged("Groups")
	defer func() { r.ok(os.Remove(c.log)) }() // the next one has its log at the same path
	resp, err := r.n.Runtime.ContainerStatus(ctx(), made, true)
	r.ok(err)
	var info struct{ RuntimeSpec json.RawMessage }
	r.ok(json.Unmarshal([]byte(resp.Info["info"]), &info))
	names := strings.NewReplacer(p.id, "POD", made, "CONTAINER")
	spec := regexp.MustCompile(`/proc/\d+/`).ReplaceAllString(string(info.RuntimeSpec), "/proc/PID/")
	return names.Replace(spec) + resp.Status.GetResources().String() + c.text("stdout")
}

// TestFieldsThatAreNotUsed sets each field of requests that Berth does not use, and checks that nothing comes of it.
func TestFieldsThatAreNotUsed(t *testing.T) {
	each(t, func(r rig) {
		same := func(c *v1.PodSandboxConfig) *v1.PodSandboxConfig { return c }
		another := func(c *v1.PodSandboxConfig) *v1.PodSandboxConfig {
			other := proto.Clone(c).(*v1.PodSandboxConfig)
			other.Metadata.Name, other.Hostname, other.LogDirectory = "other", "other", r.n.Logs+"/nowhere"
			other.Annotations = map[string]string{"run.oci.keep_original_groups": "1"}
			other.Linux = &v1.LinuxPodSandboxConfig{CgroupParent: "/nowhere", Sysctls: map[string]string{"no.such": "1"},
				SecurityContext: &v1.LinuxSandboxSecurityContext{Privileged: true}}
			return other
		}
		noPod, noContainer := func(*v1.PodSandboxConfig) {}, func(*v1.ContainerConfig) {}
		plain := r.madeOf(noPod, noContainer, same)
		if again := r.madeOf(noPod, noContainer, same); again != plain {
			r.Fatalf("the same requests made two things:\n%s\n%s", plain, again)
		}
		for name, got := range map[string]string{
			"PodSandboxConfig.windows": r.madeOf(func(c *v1.PodSandboxConfig) {
				security := &v1.WindowsSandboxSecurityContext{RunAsUsername: "app", HostProcess: true}
				c.Windows = &v1.WindowsPodSandboxConfig{SecurityContext: security}
			}, noContainer, same),
			"LinuxSandboxSecurityContext.supplemental_groups": r.madeOf(func(c *v1.PodSandboxConfig) {
				c.Linux.SecurityContext.SupplementalGroups = []int64{4321}
				c.Linux.SecurityContext.SupplementalGroupsPolicy = v1.SupplementalGroupsPolicy_Strict
			}, noContainer, same),
			"ContainerConfig.windows": r.madeOf(noPod, func(c *v1.ContainerConfig) {
				c.Windows = &v1.WindowsContainerConfig{
					Resources:       &v1.WindowsContainerResources{CpuCount: 1, MemoryLimitInBytes: 4096},
					SecurityContext: &v1.WindowsContainerSecurityContext{RunAsUsername: "app", HostProcess: true},
				}
			}, same),
			"ImageSpec.image_ref": r.madeOf(noPod, func(c *v1.ContainerConfig) {
				c.Image.ImageRef = "never/pulled@sha256:0"
			}, same),
			"CreateContainerRequest.sandbox_config": r.madeOf(noPod, noContainer, another),
			"CreateContainerRequest.sandbox_config, without": r.madeOf(noPod, noContainer,
				func(*v1.PodSandboxConfig) *v1.PodSandboxConfig { return &v1.PodSandboxConfig{} }),
		} {
			if got != plain {
				r.Errorf("%s made a difference:\n%s\nwithout:\n%s", name, got, plain)
			}
		}
		image := &v1.ImageSpec{Image: ref("busybox:latest")}
		id, err := r.n.Images.PullImage(ctx(), image, nil, nil)
		r.ok(err)
		// PullImageRequest.sandbox_config
		forPod := &v1.PodSandboxConfig{Metadata: &v1.PodSandboxMetadata{Namespace: "other"}}
		got, err := r.n.Images.PullImage(ctx(), image, nil, forPod)
		if err != nil || got != id {
			r.Errorf("for a pod another image was pulled: %s, %v", got, err)
		}
	})
}

// TestUpdateFieldsOfOthers checks the fields of an update that are not for Linux, or not for Berth.
func TestUpdateFieldsOfOthers(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 1000", limited(&v1.LinuxContainerResources{MemoryLimitInBytes: 64 * mib})))
		before, q := c.limits(), r.client()
		windows := &v1.WindowsContainerResources{MemoryLimitInBytes: 32 * mib}
		_, err := q.UpdateContainerResources(ctx(), &v1.UpdateContainerResourcesRequest{
			ContainerId: c.cid, Windows: windows, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 48 * mib},
		})
		r.wantCode(err, codes.InvalidArgument, c.cid, "Windows")
		_, err = q.UpdateContainerResources(ctx(), &v1.UpdateContainerResourcesRequest{
			ContainerId: c.cid, Annotations: map[string]string{"memory.max": "1"}, // UpdateContainerResourcesRequest.annotations
		})
		r.ok(err)
		_, err = q.UpdateContainerResources(ctx(), &v1.UpdateContainerResourcesRequest{ContainerId: c.cid})
		r.ok(err) // without limits nothing is asked for
		c.wantLimits(&v1.LinuxContainerResources{MemoryLimitInBytes: 64 * mib}, before)
		_, err = q.UpdateContainerResources(ctx(), &v1.UpdateContainerResourcesRequest{
			ContainerId: c.cid[:12], Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 48 * mib}, // the beginning of an id
		})
		r.ok(err)
		c.wantLimits(&v1.LinuxContainerResources{MemoryLimitInBytes: 48 * mib}, "50331648")
	})
}
