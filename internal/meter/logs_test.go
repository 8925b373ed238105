package meter

import (
	"strings"
	"testing"
	"time"

	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// TestLogDropped counts what is told of logs, tells of it, and warns of each container once a minute.
func TestLogDropped(t *testing.T) {
	ctr := sandbox.NewID()
	m := open(t, &sandbox.Container{ID: ctr, LogLimit: &sandbox.LogLimit{Rate: 1024, Burst: 65536}})
	r, w := &m.record, &m.Logs
	for i := range 2 {
		w.Dropped(r, ctr, runtime.Dropped{Lines: 3, Bytes: 500})
		if len(m.events) != i+1 {
			t.Fatalf("%+v", m.events)
		}
		e := m.events[i]
		if e.ctr != ctr || e.reason != ReasonLogLimit || !strings.HasPrefix(e.what, "3 lines (500 bytes)") {
			t.Errorf("%+v", e)
		}
	}
	w.Dropped(r, sandbox.NewID(), runtime.Dropped{Lines: 1, Bytes: 1})
	w.Dropped(nil, ctr, runtime.Dropped{Lines: 1, Bytes: 1}) // its pod is gone
	if got := w.Sum(); got != (runtime.Dropped{Lines: 8, Bytes: 1002}) || len(w.of) != 1 || len(m.events) != 2 {
		t.Errorf("%+v of %d, %+v", got, len(w.of), m.events)
	}
	if i := w.Info(r.Container(ctr)); i != (LogInfo{1024, 65536, 6, 1000}) {
		t.Errorf("%+v", i)
	}
	d, now := runtime.Dropped{Lines: 1, Bytes: 1}, time.Now()
	if w.add(ctr, d, true, now) || !w.add(ctr, d, true, now.Add(time.Minute)) {
		t.Error("it is not warned once a minute")
	}
	w.Forget(ctr)
	if len(w.of) != 0 {
		t.Error("a removed container is not forgotten")
	}
}
