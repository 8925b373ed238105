package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/admin"
	"berth/internal/limit"
	"berth/internal/telemetry"
)

// newOwnLog makes the daemon's log, which holds up nobody where it is not taken.
func newOwnLog(format string, level *slog.LevelVar) (*slog.Logger, *telemetry.Writer) {
	w := telemetry.NewWriter(standardError(), limit.OwnLog.Limit)
	log := telemetry.Logger(w, format, level)
	w.Lost = func(lines int64) {
		log.Warn("lines of this log were lost: what reads the daemon's standard error did not take them", "lines", lines)
	}
	return log, w
}

// standardError is standard error by another descriptor. Where nobody reads it any more, a write to this one fails; one
// to descriptor 2 would end the daemon by SIGPIPE.
var standardError = sync.OnceValue(func() io.Writer {
	fd, err := unix.FcntlInt(uintptr(unix.Stderr), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return os.Stderr
	}
	return os.NewFile(uintptr(fd), "standard error")
})

// logProblem says that the daemon's log is not taken.
func logProblem(w *telemetry.Writer) []admin.Problem {
	late, lost := w.State()
	if late.IsZero() {
		return nil
	}
	text := fmt.Sprintf("the daemon's log: what reads the daemon's standard error (journald under systemd) has taken no "+
		"line for %s, and %d lines were lost since the daemon started; pods do not mind: look whether it hangs",
		time.Since(late).Round(time.Second), lost)
	return []admin.Problem{{Message: text, Since: late}}
}
