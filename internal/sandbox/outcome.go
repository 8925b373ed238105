package sandbox

import (
	"time"

	"berth/internal/runtime"
)

// The reasons for an exit that kubelets and people know.
const (
	ReasonCompleted = "Completed"
	ReasonError     = "Error"
	ReasonOOM       = "OOMKilled"
	ReasonCannotRun = "ContainerCannotRun"
	ReasonUnknown   = "Unknown"
)

// ExitUnknown is the exit code of a process of whose end no more is known.
const ExitUnknown = 255

// FillExit writes down how a process ended.
func FillExit(c *Container, e runtime.Exit) {
	c.ExitCode, c.FinishedAt = e.Code, e.FinishedAt
	late := !e.StartedAt.IsZero() && c.StartedAt.After(e.FinishedAt) // its end was quicker than the answer to its start
	if c.StartedAt.IsZero() && c.State != Created || late {
		c.StartedAt = e.StartedAt
	}
	switch {
	case e.Unknown:
		c.ExitCode, c.Reason = ExitUnknown, ReasonUnknown
		c.Message = "the process ended while neither its monitor nor the daemon could see how"
	case e.OOMKilled:
		c.Reason = ReasonOOM
	case e.Code == 0:
		c.Reason = ReasonCompleted
	default:
		c.Reason = ReasonError
	}
	if c.FinishedAt.IsZero() {
		c.FinishedAt = time.Now()
	}
}
