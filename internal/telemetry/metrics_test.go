package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/fail"
	"berth/internal/limit"
)

func TestMetricsAreServed(t *testing.T) {
	m := NewMetrics("v1.2.3")
	m.Call("/runtime.v1.RuntimeService/Version", codes.OK, 2*time.Millisecond)
	m.Call("/runtime.v1.RuntimeService/Version", codes.NotFound, time.Second)
	m.Step("pod", "network", false, 40*time.Millisecond, nil)
	m.Step("pod", "network", true, time.Millisecond, errors.New("no"))
	m.Pull(2*time.Second, nil)
	m.Pull(time.Second, fmt.Errorf("pull: %w", crierrors.ErrRegistryUnavailable))
	m.Watch("berth_seen_total", "What was seen.", nil, func() []Count { return []Count{{nil, 7}} })
	m.Watch("berth_pods", "Pods by state.", []string{"state"}, func() []Count { return []Count{{[]string{"ready"}, 3}} })
	ctx, cancel := context.WithCancel(t.Context())
	at, wait, err := m.Serve(ctx, "127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Serve(ctx, at.String(), slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), at.String()) {
		t.Errorf("a second server at the address: %v", err)
	}
	resp, err := http.Get("http://" + at.String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	for _, want := range []string{
		`berth_call_duration_seconds_count{code="OK",method="Version"} 1`,
		`berth_call_duration_seconds_bucket{code="NotFound",method="Version",le="0.3"} 0`,
		`berth_step_duration_seconds_count{plan="pod",step="network",way="do"} 1`,
		`berth_step_failures_total{plan="pod",step="network",way="undo"} 1`,
		`berth_image_pull_duration_seconds_count{result="OK"} 1`,
		`berth_image_pull_duration_seconds_sum{result="OK"} 2`,
		`berth_image_pull_duration_seconds_count{result="RegistryUnavailable"} 1`,
		"# TYPE berth_seen_total counter", "berth_seen_total 7", "# TYPE berth_pods gauge",
		`berth_pods{state="ready"} 3`, `berth_build_info{version="v1.2.3"} 1`, "go_goroutines ",
		"process_resident_memory_bytes ",
	} {
		if !strings.Contains(string(text), want+"\n") && !strings.Contains(string(text), "\n"+want) {
			t.Errorf("there is no %s", want)
		}
	}
	cancel()
	wait()
	http.DefaultClient.CloseIdleConnections()
	client := http.Client{Timeout: time.Minute}
	resp, err = client.Get("http://" + at.String() + "/metrics")
	if err != nil {
		return
	}
	defer resp.Body.Close()
	// else somebody else has got the port
	if text, _ := io.ReadAll(resp.Body); strings.Contains(string(text), "berth_build_info") {
		t.Error("served after its end")
	}
}

func TestNoMetrics(t *testing.T) {
	var m *Metrics
	m.Call("/x/Y", codes.OK, 0)
	m.Step("pod", "network", false, 0, nil)
	m.Watch("x", "", nil, nil)
}

// TestErrorsAreTold follows an error of a kind through a call: its status, its line in the log, its metric.
func TestErrorsAreTold(t *testing.T) {
	var log bytes.Buffer
	m := NewMetrics("v1")
	unary, _ := Interceptors(Logger(&log, "json", new(slog.LevelVar)), func() bool { return true }, m)
	info := &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.ImageService/PullImage"}
	_, err := unary(t.Context(), nil, info, func(context.Context, any) (any, error) {
		return nil, fail.About(fail.Detail{Step: "pull: fetch"}, "pull x: %w",
			fail.New(crierrors.ErrRegistryUnavailable, "connection refused"))
	})
	const text = "RegistryUnavailable: pull x: connection refused"
	if s := status.Convert(err); s.Code() != codes.Unknown || s.Message() != text {
		t.Errorf("a client is told %v", s)
	}
	for _, want := range []string{`"kind":"RegistryUnavailable"`, `"step":"pull: fetch"`, `"error":"` + text + `"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s: %s", want, &log)
		}
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "berth_call_failures_total" {
			continue
		}
		if text := f.String(); strings.Contains(text, `"RegistryUnavailable"`) && strings.Contains(text, `"PullImage"`) {
			return
		}
	}
	t.Errorf("no metric counts the failure: %v", families)
}

// TestMetricsConnectionsAreBounded has clients that say nothing hold all connections that there may be. One more is
// answered when one of them has gone, on a connection that ends with the answer.
func TestMetricsConnectionsAreBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	at, wait, err := NewMetrics("test").Serve(ctx, "127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer wait()
	defer cancel()
	var silent []net.Conn
	for range limit.MetricsConnections.Limit {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	answer := make(chan *http.Response, 1)
	go func() {
		resp, err := http.Get("http://" + at.String() + "/metrics")
		if err != nil {
			t.Error(err)
		}
		answer <- resp
	}()
	select {
	case <-answer:
		t.Error("one more is answered")
	case <-time.After(300 * time.Millisecond):
	}
	if err := silent[0].Close(); err != nil {
		t.Error(err)
	}
	if resp := <-answer; resp == nil || !resp.Close || resp.StatusCode != http.StatusOK {
		t.Errorf("the answer is %+v", resp)
	} else {
		_ = resp.Body.Close()
	}
}
