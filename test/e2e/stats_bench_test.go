package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// BenchmarkStats asks a node with 100 containers in 20 pods for all its stats. cpu-ms is the daemon's processor time
// for one question, which a busy machine does not change as it changes ns/op.
func BenchmarkStats(b *testing.B) {
	reg, err := benchRegistry()
	if err != nil {
		b.Fatal(err)
	}
	n, err := node.Open(node.Options{Reach: []string{reg}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			b.Error(err)
		}
	}()
	image := ref("busybox:latest")
	if _, err := n.Images.PullImage(ctx(), &v1.ImageSpec{Image: image}, nil, nil); err != nil {
		b.Fatal(err)
	}
	for p := range 20 {
		config := n.Pod(fmt.Sprintf("bench-%d", p))
		id, err := n.Runtime.RunPodSandbox(ctx(), config, "")
		if err != nil {
			b.Fatal(err)
		}
		for c := range 5 {
			cid, err := n.Runtime.CreateContainer(ctx(), id,
				node.Container(fmt.Sprintf("c%d", c), image, []string{"sleep", "10000"}), config)
			if err == nil {
				err = n.Runtime.StartContainer(ctx(), cid)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, q := range []struct {
		name string
		ask  func() (int, error)
	}{
		{"ListContainerStats", func() (int, error) {
			l, err := n.Runtime.ListContainerStats(ctx(), nil)
			return len(l) / 5, err
		}},
		{"ListPodSandboxStats", func() (int, error) {
			l, err := n.Runtime.ListPodSandboxStats(ctx(), nil)
			return len(l), err
		}},
		{"ListPodSandboxMetrics", func() (int, error) {
			l, err := n.Runtime.ListPodSandboxMetrics(ctx())
			return len(l), err
		}},
	} {
		b.Run(q.name, func(b *testing.B) {
			before := processorTime(b, n.Pid())
			for b.Loop() {
				if got, err := q.ask(); err != nil || got != 20 {
					b.Fatal(got, err)
				}
			}
			b.ReportMetric(float64(processorTime(b, n.Pid())-before)/float64(time.Millisecond)/float64(b.N), "cpu-ms/op")
		})
	}
}

func benchRegistry() (addr string, err error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.registry == nil {
		err = fillRegistry()
	}
	if err != nil {
		return "", err
	}
	return shared.registry.Addr, nil
}

// processorTime is that of a process until now, in steps of 10 ms, with that of threads that have ended.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		b.Fatalf("/proc/%d/stat: %s", pid, data)
	}
	user, errUser := strconv.Atoi(fields[11])
	system, errSystem := strconv.Atoi(fields[12])
	if errUser != nil || errSystem != nil {
		b.Fatalf("/proc/%d/stat: %s", pid, data)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
