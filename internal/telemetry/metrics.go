package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc/codes"

	"berth/internal/fail"
	"berth/internal/limit"
)

// Metrics are the daemon's own, for Prometheus. A nil one takes everything and keeps nothing.
type Metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.HistogramVec
	errors   *prometheus.CounterVec
	steps    *prometheus.HistogramVec
	failures *prometheus.CounterVec
	pulls    *prometheus.HistogramVec
}

// Count is a number of things that share some labels, in the order of the names that Watch was given.
type Count struct {
	Labels []string
	Value  float64
}

// NewMetrics makes metrics that a server may serve.
func NewMetrics(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_call_duration_seconds", Help: "Duration of calls, by method and gRPC code.",
			Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100},
		}, []string{"method", "code"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_call_failures_total", Help: "Calls that failed, by method and kind of error.",
		}, []string{"method", "kind"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_step_duration_seconds", Help: "Duration of the steps that make (do) and unmake (undo) pods and " +
				"containers.",
			Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100},
		}, []string{"plan", "step", "way"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_step_failures_total", Help: "Steps that failed. An undo that fails is tried again.",
		}, []string{"plan", "step", "way"}),
		pulls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_image_pull_duration_seconds",
			Help:    "Duration of pulls, by result: OK, or the kind of the error.",
			Buckets: []float64{.03, .1, .3, 1, 3, 10, 30, 100, 300, 1000, 3000},
		}, []string{"result"}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_build_info", Help: "1, with the version of the daemon.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	m.registry.MustRegister(m.calls, m.errors, m.steps, m.failures, m.pulls, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Failure notes of which kind the error of a call is: the code does not tell a registry that does not answer from an
// error of no kind.
func (m *Metrics) Failure(method string, err error) {
	if m != nil && err != nil {
		m.errors.WithLabelValues(method[strings.LastIndexByte(method, '/')+1:], fail.KindOf(err).Name).Inc()
	}
}

// Call notes that a call was answered.
func (m *Metrics) Call(method string, code codes.Code, took time.Duration) {
	if m != nil {
		m.calls.WithLabelValues(method[strings.LastIndexByte(method, '/')+1:], code.String()).Observe(took.Seconds())
	}
}

// Pull notes that a pull has ended. There are as many results as kinds of errors, and one more.
func (m *Metrics) Pull(took time.Duration, err error) {
	if m == nil {
		return
	}
	result := "OK"
	if err != nil {
		result = fail.KindOf(err).Name
	}
	m.pulls.WithLabelValues(result).Observe(took.Seconds())
}

// Step notes that a step of a plan was run.
func (m *Metrics) Step(plan, step string, undo bool, took time.Duration, err error) {
	if m == nil {
		return
	}
	way := "do"
	if undo {
		way = "undo"
	}
	m.steps.WithLabelValues(plan, step, way).Observe(took.Seconds())
	if err != nil {
		m.failures.WithLabelValues(plan, step, way).Inc()
	}
}

// Watch has counts asked for whenever the metrics are read. They must not wait. One whose name ends with _total only
// ever grows while the daemon runs.
func (m *Metrics) Watch(name, help string, labels []string, counts func() []Count) {
	if m != nil {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		m.registry.MustRegister(watched{prometheus.NewDesc(name, help, labels, nil), kind, counts})
	}
}

type watched struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	counts func() []Count
}

func (w watched) Describe(to chan<- *prometheus.Desc) { to <- w.desc }

func (w watched) Collect(to chan<- prometheus.Metric) {
	for _, c := range w.counts() {
		metric, err := prometheus.NewConstMetric(w.desc, w.kind, c.Value, c.Labels...)
		if err != nil {
			metric = prometheus.NewInvalidMetric(w.desc, err)
		}
		to <- metric
	}
}

// Serve answers GET /metrics at address until ctx ends. It returns once it listens; wait waits for its end. A
// connection is for one answer, and as many as limit.MetricsConnections are accepted at once: the port may be open to
// all pods.
func (m *Metrics) Serve(ctx context.Context, address string, log *slog.Logger) (at net.Addr, wait func(), err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("serve metrics at %s: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	s.SetKeepAlivesEnabled(false)
	done, bounded := make(chan struct{}), netutil.LimitListener(l, int(limit.MetricsConnections.Limit))
	go func() {
		defer close(done)
		if err := s.Serve(bounded); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics are served no longer", "address", address, "error", err)
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	return l.Addr(), func() { <-done; stop() }, nil
}
