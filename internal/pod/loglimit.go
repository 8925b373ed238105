package pod

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"time"

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

// ReasonLogLimit is the reason of an EventLimit about a log.
const ReasonLogLimit = "LogLimit"

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

// logWarnPause is the least time between two warnings about one container's log.
const logWarnPause = time.Minute

// logWatch knows what was dropped of logs since the daemon began.
type logWatch struct {
	mu  sync.Mutex // guards what follows; nothing is locked below it
	all runtime.Dropped
	of  map[sandbox.ID]*droppedLog
}

// droppedLog is what was dropped of one container's log.
type droppedLog struct {
	runtime.Dropped
	warned time.Time
}

// LogDropped takes up what a monitor tells of a container's log.
func LogDropped(s *Pods, podID, id sandbox.ID, d runtime.Dropped) {
	var r *sandbox.Record
	var c *sandbox.Container
	if p := s.index.Load().pods[podID]; p != nil {
		r = p.rec.Load()
		c = r.Container(id)
	}
	warn := s.logs.add(id, d, c != nil, time.Now())
	if c == nil || c.LogLimit == nil {
		return
	}
	what := fmt.Sprintf("%d lines (%d bytes) of its log were dropped: it is limited to %d bytes a second",
		d.Lines, d.Bytes, c.LogLimit.Rate)
	if warn {
		s.cfg.Log.Warn("what a container logs is dropped", "pod", podID, "container", id, "lines", d.Lines,
			"bytes", d.Bytes, "rate", c.LogLimit.Rate)
	}
	s.publish(Event{Kind: EventLimit, ID: id, At: time.Now(), Record: r, Reason: ReasonLogLimit, Message: what})
}

// add counts, and says whether somebody should be warned.
func (w *logWatch) add(id sandbox.ID, d runtime.Dropped, there bool, now time.Time) (warn bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Lines += d.Lines
	w.all.Bytes += d.Bytes
	if !there {
		return false
	}
	if w.of == nil {
		w.of = map[sandbox.ID]*droppedLog{}
	}
	l := w.of[id]
	if l == nil {
		l = &droppedLog{}
		w.of[id] = l
	}
	l.Lines += d.Lines
	l.Bytes += d.Bytes
	if warn = now.Sub(l.warned) >= logWarnPause; warn {
		l.warned = now
	}
	return warn
}

// forget lets go of a container that is removed.
func (w *logWatch) forget(id sandbox.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.of, id)
}

// DroppedOfLogs is what was dropped of all logs since the daemon began.
func DroppedOfLogs(s *Pods) runtime.Dropped {
	s.logs.mu.Lock()
	defer s.logs.mu.Unlock()
	return s.logs.all
}

// LogInfo is the limit of a container's log as clients are told it, and what was dropped since the daemon began.
type LogInfo struct {
	Rate         int64 `json:"rate"`
	Burst        int64 `json:"burst"`
	DroppedLines int64 `json:"droppedLines"`
	DroppedBytes int64 `json:"droppedBytes"`
}

// LogInfoOf tells of a container whose log is limited.
func LogInfoOf(s *Pods, c *sandbox.Container) LogInfo {
	s.logs.mu.Lock()
	defer s.logs.mu.Unlock()
	i := LogInfo{Rate: c.LogLimit.Rate, Burst: c.LogLimit.Burst}
	if d := s.logs.of[c.ID]; d != nil {
		i.DroppedLines, i.DroppedBytes = d.Lines, d.Bytes
	}
	return i
}
