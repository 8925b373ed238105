package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// TestCgroupParentOfAnotherDriver gives pods a cgroup that has no meaning for the driver in force.
func TestCgroupParentOfAnotherDriver(t *testing.T) {
	each(t, func(r rig) {
		refused := map[string]string{"kubepods-pod1.slice:berth": "cgroupfs"}
		if node.GroupsOf(r.n).Systemd {
			refused = map[string]string{
				"kubepods-pod1.slice:berth": "has ':'", "/kubepods.slice/pod1": "unit of systemd",
				"/kubepods/pod@1": "has '@'",
				"/":               "root", "..": "no name of a cgroup", "/" + strings.Repeat("x", 250): "systemd takes 255",
			}
		}
		for parent, word := range refused {
			config := r.n.Pod(unique(r.T), func(c *v1.PodSandboxConfig) { c.Linux.CgroupParent = parent })
			_, err := r.n.Runtime.RunPodSandbox(ctx(), config, "")
			r.wantCode(err, codes.InvalidArgument, parent, word)
		}
	})
}

// TestCgroupParentConverted gives two pods a path of the cgroupfs driver where the driver is systemd, as CRI has every
// client do.
func TestCgroupParentConverted(t *testing.T) {
	own(t, func(r rig) {
		onSystemd(r)
		top := strings.ReplaceAll(r.n.Instance, "-", "_") + "conv"
		slice := fmt.Sprintf("/%[1]s.slice/%[1]s-burstable.slice/%[1]s-burstable-pod_x.slice", top)
		parent := func(c *v1.PodSandboxConfig) { c.Linux.CgroupParent = "/" + top + "/burstable/pod-x" }
		run := func(attempt uint32) *pod {
			config := r.n.Pod(unique(r.T), parent, func(c *v1.PodSandboxConfig) { c.Metadata.Attempt = attempt })
			id, err := r.n.Runtime.RunPodSandbox(ctx(), config, "")
			r.ok(err)
			return &pod{r, id, config}
		}
		first, second := run(0), run(1)
		memory := func(n int64) edit {
			return resources(func(l *v1.LinuxContainerResources) { l.MemoryLimitInBytes = n })
		}
		c := first.start(first.as(busybox("main", "sleep 1000", memory(64<<20))))
		other := second.start(second.as(busybox("other", "sleep 1000")))
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", r.pidOf(c.cid)))
		r.ok(err)
		scope := slice + "/" + node.GroupsOf(r.n).Container(c.cid)
		if !strings.Contains(string(groups), "::"+scope) {
			r.Errorf("the container is in %s, wanted %s", groups, scope)
		}
		r.ok(c.limit(&v1.LinuxContainerResources{MemoryLimitInBytes: 96 << 20}))
		data, err := os.ReadFile("/sys/fs/cgroup" + scope + "/memory.max")
		if strings.TrimSpace(string(data)) != "100663296" {
			r.Errorf("after an update memory.max is %s, %v", data, err)
		}
		told := 0
		for name, all := range first.metrics() {
			for _, m := range all {
				if m.labels["container"] != "" {
					continue
				}
				if told++; m.labels["id"] != slice {
					r.Errorf("%s is told of %v, wanted %s", name, m.labels, slice)
				}
			}
		}
		if told == 0 {
			r.Error("no metric is told of the pod")
		}

		first.remove()
		state := other.status().State
		if _, err := os.Stat("/sys/fs/cgroup" + slice); err != nil || state != v1.ContainerState_CONTAINER_RUNNING {
			r.Errorf("with the first of two pods the slice went, %v, or the container of the other: %v", err, state)
		}
		r.ok(r.n.Restart())
		second.remove()
		for dir := slice; dir != "/"; dir = filepath.Dir(dir) {
			if _, err := os.Stat("/sys/fs/cgroup" + dir); !os.IsNotExist(err) {
				r.Errorf("%s is left: %v", dir, err)
			}
			r.eventually("systemd has stopped "+dir, func() bool {
				return exec.Command("systemctl", "is-active", "--quiet", filepath.Base(dir)).Run() != nil
			})
		}
	})
}
