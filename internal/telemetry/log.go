// Package telemetry is how the daemon tells what it does: its logger, the one interceptor that every call passes, and
// the timeline of its start.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
)

// ParseLevel reads debug, info, warn or error.
func ParseLevel(text string) (slog.Level, error) {
	switch text {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log level %q is none of debug, info, warn, error", text)
}

// Logger writes one line an event to w: JSON when format is json, else text. The level may be changed while it is in
// use. It holds no lock while w writes: w is called by as many at a time as there are that have something to tell.
func Logger(w io.Writer, format string, level *slog.LevelVar) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	return slog.New(&handler{to: w, level: level, form: func(line io.Writer) slog.Handler {
		if format == "json" {
			return slog.NewJSONHandler(line, opts)
		}
		return slog.NewTextHandler(line, opts)
	}})
}
