package pod

import (
	"strings"
	"testing"

	"berth/internal/meter"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// TestLogDroppedIsPublished has a monitor tell of a log that is limited: whoever watches gets an event.
func TestLogDroppedIsPublished(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	if err := b.Catalog.index.Load().pods[pod].update(t.Context(), "test", func(r *sandbox.Record) error {
		return r.Edit(ctr, func(c *sandbox.Container) error {
			c.LogLimit = &sandbox.LogLimit{Rate: 1024, Burst: 65536}
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
	w := b.Feed.Watch()
	defer w.Close()
	LogDropped(b.Pods, pod, ctr, runtime.Dropped{Lines: 3, Bytes: 500})
	e := take(t, w, "container 4")[0]
	if e.ID != ctr || e.Reason != meter.ReasonLogLimit || !strings.HasPrefix(e.Message, "3 lines (500 bytes)") {
		t.Errorf("%+v", e)
	}
	LogDropped(b.Pods, sandbox.NewID(), ctr, runtime.Dropped{Lines: 1, Bytes: 1})
	none(t, w)
}
