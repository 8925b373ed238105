package restart

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/sandbox"
)

// publish gives a pod a port of the machine.
func (n *node) publish(id sandbox.ID, port int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.records[id].Clone()
	cfg := proto.Clone(r.Config.Get()).(*runtimeapi.PodSandboxConfig)
	cfg.PortMappings = append(cfg.PortMappings, &runtimeapi.PortMapping{ContainerPort: port, HostPort: port})
	m, err := sandbox.NewPodConfig(cfg)
	if err != nil {
		n.t.Error(err)
	}
	r.Config = m
	n.records[id] = r
}

// ran are the sandboxes that were run, in the order of their names.
func (n *node) ran() (all []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, call := range n.calls {
		if id, ok := strings.CutPrefix(call, "run "); ok {
			all = append(all, strings.Fields(id)[0])
		}
	}
	slices.Sort(all)
	return all
}

// TestPortsOfAnotherPod starts a machine with two pods of one port that both start again, and one of another port: one
// of the two starts, the log names it once, and the other starts when the port is free.
func TestPortsOfAnotherPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.takes = time.Second
		for name, port := range map[string]int32{"pa": 80, "pb": 80, "pc": 81} {
			n.pod(name, "always")
			n.publish(sandbox.ID(name+"0"), port)
			n.endPod(sandbox.ID(name + "0"))
		}
		first, second := "pa", "pb"
		log := keep(t, n, func() {
			time.Sleep(35 * time.Second)
			ran := n.ran()
			if len(ran) != 2 || ran[1] != "pc1" {
				t.Fatalf("ran %v", ran)
			}
			if ran[0] == "pb1" {
				first, second = second, first
			}
			n.hold(func() { // berth stop
				r := n.records[sandbox.ID(first+"1")].Clone()
				r.State, r.StopAsked = sandbox.Stopped, true
				n.records[r.ID] = r
			})
			time.Sleep(15 * time.Second)
			if ran := n.ran(); !slices.Equal(ran, []string{"pa1", "pb1", "pc1"}) {
				t.Errorf("after the stop: %v", ran)
			}
		})
		told := fmt.Sprintf("pod=%s every=10s error=\"run the pod anew: port 80/tcp of this machine leads to pod %s already",
			second, first)
		if strings.Count(log, told) != 1 || strings.Count(log, "could not all be started again") != 1 {
			t.Errorf("the log says:\n%s\nwant once: %s", log, told)
		}
	})
}
