package nri

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"

	"berth/test/timeouts"
)

// counter is a plugin that counts what it is shown.
type counter struct{ pods, containers []string }

// Synchronize takes note of the ids.
func (c *counter) Synchronize(
	_ context.Context, pods []*api.PodSandbox, containers []*api.Container,
) ([]*api.ContainerUpdate, error) {
	for _, pod := range pods {
		c.pods = append(c.pods, pod.Id)
	}
	for _, container := range containers {
		c.containers = append(c.containers, container.Id)
	}
	return nil, nil
}

// StopPodSandbox is an event for the plugin to ask for.
func (*counter) StopPodSandbox(context.Context, *api.PodSandbox) error { return nil }

// containers are some, each with so many bytes of environment, with ids in order.
func containers(bytes ...int) (all []*api.Container) {
	for i, n := range bytes {
		all = append(all, &api.Container{Id: fmt.Sprint(i), Env: []string{"X=" + strings.Repeat("x", n)}})
	}
	return all
}

func times(n, bytes int) (all []int) {
	for range n {
		all = append(all, bytes)
	}
	return all
}

// A plugin that joins is shown all, in order, however much that is and however the sizes differ. The adaptation's own
// split panics with few pods and many large containers.
func TestLargeSynchronisation(t *testing.T) {
	for name, c := range map[string]struct {
		pods       []*api.PodSandbox
		containers []*api.Container
	}{
		"one pod of ten large":      {pods("a", 1, 1), containers(times(10, 960<<10)...)},
		"a few large among small":   {pods("a", 6, 1), containers(append(times(5, 1), times(8, 1200<<10)...)...)},
		"one pod of many":           {pods("a", 1, 1), containers(times(100, 100<<10)...)},
		"as large as may be":        {pods("a", 1, 1), containers(times(3, messageRoom-100)...)},
		"large pods, no containers": {pods("a", 9, 1<<20), nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := plugins(timeouts.For(30*time.Second), timeouts.For(time.Minute))
			results := runWith(t, p, c.pods, c.containers)
			plugin := &counter{}
			join(t, p, plugin)
			if r := wait(t, results); r.err != nil {
				t.Fatal(r.err)
			}
			var want []string
			for _, one := range c.containers {
				want = append(want, one.Id)
			}
			if len(plugin.pods) != len(c.pods) || fmt.Sprint(plugin.containers) != fmt.Sprint(want) {
				t.Errorf("it is shown %d pods and the containers %v", len(plugin.pods), plugin.containers)
			}
		})
	}
}

// What fits into no message is left out, and named.
func TestTooLargeForAMessage(t *testing.T) {
	var skipped []string
	fit := sendable(containers(1, messageRoom, 2), func(id string, size int) {
		skipped = append(skipped, fmt.Sprint(id, size > messageRoom))
	})
	if len(fit) != 2 || fit[0].Id != "0" || fit[1].Id != "2" || fmt.Sprint(skipped) != "[1true]" {
		t.Errorf("%d fit, left out %v", len(fit), skipped)
	}
}

// A plugin that takes one message alone is refused; so is one that refuses a part.
func TestPluginThatTakesNoParts(t *testing.T) {
	whole, err := proto.Marshal(&api.SynchronizeRequest{Containers: containers(times(3, 2<<20)...)})
	if err != nil {
		t.Fatal(err)
	}
	refusal := errors.New("refused")
	for name, c := range map[string]struct {
		answer error
		want   string
	}{"answers as to the last": {nil, "takes no more than one"}, "refuses": {refusal, "refused"}} {
		sent := 0
		err := sendSplit(t.Context(), &ttrpc.Request{Payload: whole}, &ttrpc.Response{},
			func(context.Context, *ttrpc.Request, *ttrpc.Response) error { sent++; return c.answer })
		if err == nil || !strings.Contains(err.Error(), c.want) || sent != 1 {
			t.Errorf("%s: after %d messages: %v", name, sent, err)
		}
	}
}

// What is sent is what was to be sent, in parts that fit, and what is not known of it stays.
func TestPartsAreTheWhole(t *testing.T) {
	for _, more := range []bool{false, true} {
		want := &api.SynchronizeRequest{Pods: pods("a", 3, 1<<20), Containers: containers(times(20, 700<<10)...), More: more}
		want.ProtoReflect().SetUnknown([]byte{15<<3 | 2, 1, 'x'})
		payload, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got := &api.SynchronizeRequest{}
		sent := 0
		resp := &ttrpc.Response{}
		err = sendSplit(t.Context(), &ttrpc.Request{Payload: payload}, resp,
			func(_ context.Context, req *ttrpc.Request, resp *ttrpc.Response) error {
				sent++
				part := &api.SynchronizeRequest{}
				err := proto.Unmarshal(req.Payload, part)
				if len(req.Payload) > messageRoom || part.More != (more || len(got.Containers)+len(part.Containers) < 20) {
					t.Errorf("part %d has %d bytes, more %v", sent, len(req.Payload), part.More)
				}
				proto.Merge(got, part)
				answer, _ := proto.Marshal(&api.SynchronizeResponse{More: part.More})
				resp.Payload = answer
				return err
			})
		if got.More = more; err != nil || sent < 4 || !proto.Equal(got, want) {
			t.Errorf("after %d parts: %v", sent, err)
		}
	}
}

// What a request holds in memory while it is sent in parts, beside itself.
func BenchmarkSendSplit(b *testing.B) {
	payload, err := proto.Marshal(&api.SynchronizeRequest{Containers: containers(times(500, 60<<10)...)})
	if err != nil {
		b.Fatal(err)
	}
	answer, err := proto.Marshal(&api.SynchronizeResponse{More: true})
	if err != nil {
		b.Fatal(err)
	}
	live := func() uint64 {
		var m goruntime.MemStats
		goruntime.GC()
		goruntime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, most := live(), uint64(0)
	for b.Loop() {
		err := sendSplit(b.Context(), &ttrpc.Request{Payload: payload}, &ttrpc.Response{},
			func(_ context.Context, req *ttrpc.Request, resp *ttrpc.Response) error {
				most = max(most, live())
				resp.Payload = answer
				goruntime.KeepAlive(req)
				return nil
			})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(payload)), "payload-B")
	b.ReportMetric(float64(most)-float64(before), "live-B")
	goruntime.KeepAlive(payload)
}

// A panic of the library refuses the plugin and does not end the daemon.
func TestPanicRefusesAPlugin(t *testing.T) {
	show := recovered(func(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
		var none []int
		return nil, errors.New(fmt.Sprint(none[:len(containers(1))]))
	})
	if _, err := show(t.Context(), nil, containers(1, 2)); err == nil ||
		!strings.Contains(err.Error(), "2 containers: the NRI library panicked: runtime error: slice bounds") {
		t.Error(err)
	}
}
