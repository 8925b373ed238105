package pod

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/fail"
	"berth/internal/meter"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

func TestLogLimit(t *testing.T) {
	usual := spec.Log{Rate: 100_000}
	for name, c := range map[string]struct {
		rate, burst, own string // annotations
		of               spec.Log
		want             sandbox.LogLimit
		says             string
	}{
		"nobody says": {},
		"the handler": {of: usual, want: sandbox.LogLimit{Rate: 100_000, Burst: 100_000}},
		"the handler's burst": {of: spec.Log{Rate: 2048, Burst: 80_000}, want: sandbox.LogLimit{Rate: 2048,
			Burst: 80_000}},
		"a little rate":   {of: spec.Log{Rate: 2048}, want: sandbox.LogLimit{Rate: 2048, Burst: 64 << 10}},
		"a burst alone":   {burst: "1M"},
		"the pod":         {rate: "1Mi", burst: "10Mi", want: sandbox.LogLimit{Rate: 1 << 20, Burst: 10 << 20}},
		"the container":   {rate: "1M", own: "2M", want: sandbox.LogLimit{Rate: 2e6, Burst: 2e6}},
		"less than usual": {rate: "50k", of: usual, want: sandbox.LogLimit{Rate: 50_000, Burst: 64 << 10}},
		"more than usual": {rate: "200k", of: usual, says: "100000 that log_rate allows"},
		"more for one":    {own: "200k", of: usual, says: "log-rate.berth/main"},
		"more at once":    {burst: "200k", of: usual, says: "100000 that max_log_burst allows"},
		"as much as is allowed": {rate: "1M", of: spec.Log{Rate: 100_000, MaxRate: 1e6},
			want: sandbox.LogLimit{Rate: 1e6, Burst: 1e6}},
		"more than is allowed": {rate: "2M", of: spec.Log{Rate: 100_000, MaxRate: 1e6}, says: "max_log_rate"},
		"more at once, allowed": {burst: "2M", of: spec.Log{Rate: 100_000, MaxBurst: 3e6},
			want: sandbox.LogLimit{Rate: 100_000, Burst: 2e6}},
		"no limit, where one is":  {rate: "0", of: usual, says: "at least 1024"},
		"no quantity":             {rate: "much", says: "not a quantity"},
		"a burst that is too low": {rate: "1M", burst: "1k", says: "at least 65536"},
	} {
		asks := map[string]string{}
		for name, value := range map[string]string{
			annotation.KeyLogRate: c.rate, annotation.KeyLogBurst: c.burst, annotation.KeyLogRateOf + "main": c.own,
		} {
			if value != "" {
				asks[name] = value
			}
		}
		cfg := &runtimeapi.PodSandboxConfig{Annotations: asks}
		got, err := logLimit(cfg, c.of, "main")
		if _, whole := logLimits(cfg, c.of); (whole != nil) != (c.says != "") {
			t.Errorf("%s: the pod: %v", name, whole)
		}
		switch {
		case c.says != "" && (!fail.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v", name, err)
		case c.says == "" && (err != nil || got == nil && c.want != sandbox.LogLimit{} || got != nil && *got != c.want):
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestLogDroppedIsPublished has a monitor tell of a log that is limited: whoever watches gets an event.
func TestLogDroppedIsPublished(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	if err := b.index.Load().pods[pod].update(t.Context(), "test", func(r *sandbox.Record) error {
		return r.Edit(ctr, func(c *sandbox.Container) error {
			c.LogLimit = &sandbox.LogLimit{Rate: 1024, Burst: 65536}
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
	w := b.Watch()
	defer w.Close()
	LogDropped(b.Pods, pod, ctr, runtime.Dropped{Lines: 3, Bytes: 500})
	e := take(t, w, "container 4")[0]
	if e.ID != ctr || e.Reason != meter.ReasonLogLimit || !strings.HasPrefix(e.Message, "3 lines (500 bytes)") {
		t.Errorf("%+v", e)
	}
	LogDropped(b.Pods, sandbox.NewID(), ctr, runtime.Dropped{Lines: 1, Bytes: 1})
	none(t, w)
}
