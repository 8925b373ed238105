package callers

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestTextsThatAreNoUTF8 encodes answers with such texts in every place that a message has for texts: each is encoded,
// with all else as it is, and the message itself is left alone, since others may share it.
func TestTextsThatAreNoUTF8(t *testing.T) {
	status := func(bad string) *runtimeapi.ContainerStatusResponse {
		return &runtimeapi.ContainerStatusResponse{
			Status: &runtimeapi.ContainerStatus{
				Id: "c", Message: "no such file: " + bad, Labels: map[string]string{bad: bad, "a": "b"},
				Mounts: []*runtimeapi.Mount{{HostPath: bad}, {HostPath: "/fine"}},
			},
			Info: map[string]string{"info": bad},
		}
	}
	metrics := func(bad string) *runtimeapi.ListPodSandboxMetricsResponse {
		one := func(name string) *runtimeapi.PodSandboxMetrics {
			return &runtimeapi.PodSandboxMetrics{PodSandboxId: strings.Repeat("a", 64), Metrics: []*runtimeapi.Metric{
				{Name: "bytes", LabelValues: []string{"x", name}, Value: &runtimeapi.UInt64Value{Value: 7}}}}
		}
		all := &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: []*runtimeapi.PodSandboxMetrics{one(bad)}}
		for range 100 {
			all.PodMetrics = append(all.PodMetrics, one("eth0"))
		}
		return all
	}
	const bad, mended = "\xff\xfex", "?x"
	for name, c := range map[string]struct{ told, want, empty proto.Message }{
		"status":  {status(bad), status(mended), &runtimeapi.ContainerStatusResponse{}},
		"metrics": {metrics(bad), metrics(mended), &runtimeapi.ListPodSandboxMetricsResponse{}},
	} {
		before := proto.Clone(c.told)
		kept := &keptAnswer{Message: c.told, size: int64(proto.Size(c.told)), conn: &conn{of: New(Limits{})}}
		for how, v := range map[string]any{"small": c.told, "counted": kept} {
			data, err := countingCodec{}.Marshal(v)
			if err != nil {
				t.Errorf("%s, %s: %v", name, how, err)
				continue
			}
			proto.Reset(c.empty)
			if err := (countingCodec{}).Unmarshal(data, c.empty); err != nil || !proto.Equal(c.empty, c.want) {
				t.Errorf("%s, %s: %v, %v", name, how, err, c.empty)
			}
		}
		if !proto.Equal(c.told, before) {
			t.Errorf("%s: the message has become %v", name, c.told)
		}
	}
}
