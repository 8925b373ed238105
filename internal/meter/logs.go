package meter

import (
	"fmt"
	"sync"
	"time"

	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// ReasonLogLimit is the reason that Reached is told of a log.
const ReasonLogLimit = "LogLimit"

// logWarnPause is the least time between two warnings about one container's log.
const logWarnPause = time.Minute

// LogWatch counts what was dropped of logs since the daemon began.
type LogWatch struct {
	cfg Config

	mu  sync.Mutex // guards what follows; nothing is locked below it
	all runtime.Dropped
	of  map[sandbox.ID]*droppedLog
}

// droppedLog is what was dropped of one container's log.
type droppedLog struct {
	runtime.Dropped
	warned time.Time
}

// Dropped takes up what a monitor tells of the log of a container; r is the record of its pod, nil without one.
func (w *LogWatch) Dropped(r *sandbox.Record, id sandbox.ID, d runtime.Dropped) {
	var c *sandbox.Container
	if r != nil {
		c = r.Container(id)
	}
	warn := w.add(id, d, c != nil, time.Now())
	if c == nil || c.LogLimit == nil {
		return
	}
	what := fmt.Sprintf("%d lines (%d bytes) of its log were dropped: it is limited to %d bytes a second",
		d.Lines, d.Bytes, c.LogLimit.Rate)
	if warn {
		w.cfg.Log.Warn("log lines of a container are dropped", "pod", r.ID, "container", id, "lines", d.Lines,
			"bytes", d.Bytes, "rate", c.LogLimit.Rate)
	}
	w.cfg.Reached(r, id, ReasonLogLimit, what)
}

// add counts, and reports whether to warn.
func (w *LogWatch) add(id sandbox.ID, d runtime.Dropped, there bool, now time.Time) (warn bool) {
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

// Forget lets go of a container that is removed.
func (w *LogWatch) Forget(id sandbox.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.of, id)
}

// Sum is what was dropped of all logs since the daemon began.
func (w *LogWatch) Sum() runtime.Dropped {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

// LogInfo is the limit of a container's log as clients are told it, and what was dropped since the daemon began.
type LogInfo struct {
	Rate         int64 `json:"rate"`
	Burst        int64 `json:"burst"`
	DroppedLines int64 `json:"droppedLines"`
	DroppedBytes int64 `json:"droppedBytes"`
}

// Info tells of a container whose log is limited.
func (w *LogWatch) Info(c *sandbox.Container) LogInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := LogInfo{Rate: c.LogLimit.Rate, Burst: c.LogLimit.Burst}
	if d := w.of[c.ID]; d != nil {
		i.DroppedLines, i.DroppedBytes = d.Lines, d.Bytes
	}
	return i
}
