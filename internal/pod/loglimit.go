package pod

import (
	"cmp"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/config"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// With these prefixes and the name of a container the annotations spec.LogRateAnnotation and spec.LogBurstAnnotation
// are of that container, and go before those of the pod.
const (
	LogRateOfContainer  = "log-rate.berth/"
	LogBurstOfContainer = "log-burst.berth/"
)

// logLimit is what may be written to the log of a pod's container of that name: as annotations of the pod say, or its
// handler. nil is no limit.
func logLimit(cfg *runtimeapi.PodSandboxConfig, h spec.Log, container string) (*sandbox.LogLimit, error) {
	all := cfg.GetAnnotations()
	named := func(own, usual string) string {
		if _, said := all[own+container]; said && container != "" {
			return own + container
		}
		return usual
	}
	rate, err := annotated(all, limitAsk{
		named(LogRateOfContainer, spec.LogRateAnnotation), h.Rate, h.MaxRate, config.LeastLogRate,
		"max_log_rate", "log_rate",
	})
	if err != nil {
		return nil, err
	}
	most := cmp.Or(h.MaxBurst, h.Burst)
	if in := cmp.Or(h.MaxRate, h.Rate); most == 0 && in > 0 {
		most = max(in, config.LeastLogBurst)
	}
	burst, err := annotated(all, limitAsk{
		named(LogBurstOfContainer, spec.LogBurstAnnotation), h.Burst, most, config.LeastLogBurst,
		"max_log_burst", "log_burst",
	})
	if err != nil || rate == 0 {
		return nil, err
	}
	return &sandbox.LogLimit{
		Rate: int64(rate), Burst: cmp.Or(int64(burst), max(int64(rate), config.LeastLogBurst)),
	}, nil
}

// logLimits checks all of a pod's annotations about logs, and returns what is not of one container.
func logLimits(cfg *runtimeapi.PodSandboxConfig, h spec.Log) (*sandbox.LogLimit, error) {
	for name := range cfg.GetAnnotations() {
		for _, own := range []string{LogRateOfContainer, LogBurstOfContainer} {
			if container, is := strings.CutPrefix(name, own); is {
				if _, err := logLimit(cfg, h, container); err != nil {
					return nil, err
				}
			}
		}
	}
	return logLimit(cfg, h, "")
}

// LogDropped takes up what a monitor tells of a container's log.
func LogDropped(s *Pods, podID, id sandbox.ID, d runtime.Dropped) {
	var r *sandbox.Record
	if p := s.index.Load().pods[podID]; p != nil {
		r = p.rec.Load()
	}
	s.Meter.Logs.Dropped(r, id, d)
}
