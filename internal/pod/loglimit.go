package pod

import (
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// LogDropped takes up what a monitor tells of a container's log.
func LogDropped(s *Pods, podID, id sandbox.ID, d runtime.Dropped) {
	var r *sandbox.Record
	if p := s.Catalog.index.Load().pods[podID]; p != nil {
		r = p.rec.Load()
	}
	s.Meter.Logs.Dropped(r, id, d)
}
