package pod

import (
	"cmp"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/config"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// logLimit is what may be written to the log of a pod's container of that name: as annotations of the pod say, or its
// handler. nil is no limit.
func logLimit(cfg *runtimeapi.PodSandboxConfig, h spec.Log, container string) (*sandbox.LogLimit, error) {
	rate, err := annotation.LogRate(cfg.GetAnnotations(), container, annotation.Bounds{
		Usual: h.Rate, Most: h.MaxRate, Least: config.LeastLogRate, UsualKey: "log_rate", MostKey: "max_log_rate",
	})
	if err != nil {
		return nil, err
	}
	most := cmp.Or(h.MaxBurst, h.Burst)
	if in := cmp.Or(h.MaxRate, h.Rate); most == 0 && in > 0 {
		most = max(in, config.LeastLogBurst)
	}
	burst, err := annotation.LogBurst(cfg.GetAnnotations(), container, annotation.Bounds{
		Usual: h.Burst, Most: most, Least: config.LeastLogBurst, UsualKey: "log_burst", MostKey: "max_log_burst",
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
	for _, container := range annotation.LogContainers(cfg.GetAnnotations()) {
		if _, err := logLimit(cfg, h, container); err != nil {
			return nil, err
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
