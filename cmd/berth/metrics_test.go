package main

import (
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth/internal/telemetry"
	"berth/test/timeouts"
)

// TestMetricsPortThatIsTaken has somebody else have the port of the metrics: the daemon goes on without them, tells of
// it, and serves them when the port is free.
func TestMetricsPortThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	b := newBackground()
	defer b.end()
	p := metricsPort{retry: 10 * time.Millisecond}
	p.serve(b, telemetry.NewMetrics("test"), address, slog.New(slog.DiscardHandler))
	if all := p.problems(); len(all) != 1 || !strings.Contains(all[0].Message, address) {
		t.Errorf("problems: %+v", all)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(timeouts.For(10 * time.Second)); len(p.problems()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("problems when the port is free: %+v", p.problems())
		}
	}
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
		t.Errorf("the metrics are answered by %s", resp.Status)
	}
}
