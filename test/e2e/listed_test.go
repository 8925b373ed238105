package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// lists is everything in which a client of CRI comes across a pod or container, by ids.
func (r rig) lists() map[string][]string {
	r.Helper()
	all := map[string][]string{}
	add := func(list, id string) { all[list] = append(all[list], id) }
	pods, err := r.n.Runtime.ListPodSandbox(ctx(), nil)
	r.ok(err)
	for _, p := range pods {
		add("pods", p.Id)
	}
	containers, err := r.n.Runtime.ListContainers(ctx(), nil)
	r.ok(err)
	for _, c := range containers {
		add("containers", c.PodSandboxId)
	}
	stats, err := r.n.Runtime.ListPodSandboxStats(ctx(), nil)
	r.ok(err)
	for _, s := range stats {
		add("stats", s.Attributes.Id)
	}
	use, err := r.n.Runtime.ListContainerStats(ctx(), nil)
	r.ok(err)
	for _, s := range use {
		add("container stats", s.Attributes.Id)
	}
	metrics, err := r.n.Runtime.ListPodSandboxMetrics(ctx())
	r.ok(err)
	for _, m := range metrics {
		add("metrics", m.PodSandboxId)
	}
	return all
}

// TestAKubeletSeesItsOwnPods runs a pod by hand beside one of a kubelet, and looks with the eyes of each.
func TestAKubeletSeesItsOwnPods(t *testing.T) {
	own(t, func(r rig) {
		image := ref("busybox:latest")
		events := make(chan *v1.ContainerEventResponse, 100)
		watching, cancel := context.WithCancel(ctx())
		defer cancel()
		go func() { _ = r.n.Runtime.GetContainerEvents(watching, events, nil) }()
		kube := r.pod(func(c *v1.PodSandboxConfig) {
			// Whoever may label pods cannot hide them from their kubelet.
			c.Labels = map[string]string{"berth.run": "x", "io.kubernetes.pod.uid": c.Metadata.Uid}
		})
		r.eventually("events come", func() bool {
			select {
			case e := <-events:
				return e.PodSandboxStatus.Id == kube.id
			default:
				return false
			}
		})
		id := strings.TrimSpace(r.mustBerth("run", "-d", "--log-dir", r.n.Logs, "--name", "hand", image, "sleep", "1000"))
		main := kube.start(busybox("main", "sleep 1000"))
		st, err := r.n.Runtime.ContainerStatus(ctx(), id, false)
		r.ok(err) // by its id
		if st.Status.State != v1.ContainerState_CONTAINER_RUNNING {
			r.Errorf("by its id it is %s", st.Status.State)
		}
		hand := strings.TrimSpace(r.mustBerth("pods", "-q", "--no-trunc", "--name", "^hand$"))
		for list, ids := range r.lists() {
			if slices.Contains(ids, hand) || slices.Contains(ids, id) {
				r.Errorf("a kubelet sees it in the list of %s", list)
			}
			if !slices.Contains(ids, kube.id) && !slices.Contains(ids, main.cid) {
				r.Errorf("a kubelet does not see its own in the list of %s: %v", list, ids)
			}
		}
		for _, command := range []string{"ps", "pods", "stats --no-stream"} {
			if out := r.mustBerth(strings.Fields(command)...); !strings.Contains(out, "hand") || !strings.Contains(out,
				"main") &&
				!strings.Contains(out, kube.config.Metadata.Name) {
				r.Errorf("berth %s: %s", command, out)
			}
		}
		images, err := r.n.Images.ListImages(ctx(), nil)
		r.ok(err)
		if !images[0].Pinned || strings.Contains(r.mustBerth("images"), "pinned") {
			r.Errorf("the image: %v", images[0])
		}
		r.mustBerth("kill", "hand")
		r.mustBerth("wait", "hand")
		r.ok(r.n.Runtime.StopContainer(ctx(), main.cid, 0))
		r.eventually("the end of the kubelet's container is told, and nothing else was", func() bool {
			e := <-events
			if e.PodSandboxStatus.Id != kube.id {
				r.Fatalf("an event of another pod: %v", e)
			}
			return e.ContainerEventType == v1.ContainerEventType_CONTAINER_STOPPED_EVENT
		})
		r.mustBerth("rm", "--all") // the kubelet's pod is not meant
		if got := r.lists()["pods"]; len(got) != 1 || got[0] != kube.id {
			r.Errorf("after rm --all: %v", got)
		}
		images, err = r.n.Images.ListImages(ctx(), nil)
		r.ok(err)
		if images[0].Pinned {
			r.Error("the image of a pod that is gone is still pinned")
		}
	})
}

// TestAllClientsSeeAllPods has the key that a node without a kubelet may want.
func TestAllClientsSeeAllPods(t *testing.T) {
	r := ownNode(t, node.Options{Tables: "[pods]\nlist_run = true\n"})
	image := r.pull("busybox:latest")
	r.mustBerth("run", "-d", "--log-dir", r.n.Logs, "--name", "hand", image, "sleep", "1000")
	hand := strings.TrimSpace(r.mustBerth("pods", "-q", "--no-trunc"))
	if got := r.lists()["pods"]; !slices.Contains(got, hand) {
		r.Errorf("pods %v, and no %s", got, hand)
	}
	r.mustBerth("rm", "-fa")
}
