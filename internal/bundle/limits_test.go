package bundle

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/fail"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

func TestStorageOf(t *testing.T) {
	const size, inodes = annotation.KeyStorageBytes, annotation.KeyStorageInodes
	usual := spec.Storage{Size: 1 << 30, Inodes: 1000}
	bytes := func(text string) map[string]string { return map[string]string{size: text} }
	files := func(text string) map[string]string { return map[string]string{inodes: text} }
	for name, c := range map[string]struct {
		asks map[string]string
		of   spec.Storage
		want sandbox.Storage
		says string
	}{
		"nobody says":           {},
		"the handler":           {nil, usual, sandbox.Storage{Bytes: 1 << 30, Inodes: 1000}, ""},
		"the pod":               {asks: bytes("1.5Gi"), want: sandbox.Storage{Bytes: 1.5 * (1 << 30)}},
		"the pod one of both":   {bytes("500M"), usual, sandbox.Storage{Bytes: 500e6, Inodes: 1000}, ""},
		"the pod the other":     {files("64"), usual, sandbox.Storage{Bytes: 1 << 30, Inodes: 64}, ""},
		"more than usual":       {bytes("2Gi"), usual, sandbox.Storage{}, "1073741824 that storage_size allows"},
		"more files than usual": {files("1001"), usual, sandbox.Storage{}, "1000 that storage_inodes allows"},
		"as much as is allowed": {bytes("2Gi"), spec.Storage{Size: 1 << 30, MaxSize: 2 << 30},
			sandbox.Storage{Bytes: 2 << 30}, ""},
		"more than is allowed": {bytes("3Gi"), spec.Storage{MaxSize: 2 << 30}, sandbox.Storage{}, "max_storage_size"},
		"the least":            {bytes("1Mi"), usual, sandbox.Storage{Bytes: 1 << 20, Inodes: 1000}, ""},
		"nothing":              {asks: bytes("0"), says: "at least 1048576"},
		"too few files":        {asks: files("63"), says: "at least 64"},
		"as much as there is":  {asks: bytes("9E"), want: sandbox.Storage{Bytes: 9e18}},
		"beyond 8 Ei":          {asks: bytes("10E"), says: "at most 8 Ei"},
		"no quantity":          {asks: bytes("much"), says: "not a quantity"},
		"a quantity below 0":   {asks: bytes("-1Gi"), says: "not a quantity"},
		"an empty annotation":  {asks: files(""), says: "not a quantity"},
		"a huge exponent":      {asks: bytes("1e999999999"), says: "not a quantity"},
	} {
		got, err := storageOf(&runtimeapi.PodSandboxConfig{Annotations: c.asks}, c.of)
		switch {
		case c.says == "" && (err != nil || got != c.want):
			t.Errorf("%s: %+v, %v", name, got, err)
		case c.says != "" && (!fail.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

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
