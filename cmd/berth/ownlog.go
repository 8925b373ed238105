package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"

	"berth/internal/admin"
	"berth/internal/limit"
	"berth/internal/telemetry"
)

// lastWords is how long the daemon waits at its end for the last lines of its log to be taken, and one that does not
// start for its error.
const lastWords = time.Second

// newOwnLog makes the daemon's log, which holds up nobody where it is not taken.
func newOwnLog(format string, level *slog.LevelVar) (*slog.Logger, *telemetry.Writer) {
	w := telemetry.NewWriter(standardError(), limit.OwnLog.Limit)
	log := telemetry.Logger(w, format, level)
	w.Lost = func(lines int64) { // an error, so that each log_level shows it
		log.Error("lines of this log were lost: what reads the daemon's standard error did not take them", "lines", lines)
	}
	return log, w
}

// logOfLibraries has what libraries have to say, and whoever has no logger, be written in the same way. It is of the
// process, and is called before any of them is used.
func logOfLibraries(format string) {
	w := telemetry.NewWriter(standardError(), limit.OwnLog.Limit)
	log := telemetry.Logger(w, format, &slog.LevelVar{})
	slog.SetDefault(log) // and with it package log
	klog.SetSlogLogger(log)
	logrus.SetOutput(w)
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, w))
}

// keepCrashes has the Go runtime write to a file of the state directory, while the log is not taken, why it ends the
// daemon and the stacks of all goroutines. It writes to descriptor 2 and waits for that for ever, also when the
// watchdog has sent SIGABRT.
func keepCrashes(n *node) {
	if err := openCrashes(n.logWriter, n.log, filepath.Join(n.cfg.State, "crash")); err != nil {
		n.log.Warn("if the daemon crashes while nobody reads its standard error, it may hang instead", "error", err)
	}
}

func openCrashes(w *telemetry.Writer, log *slog.Logger, path string) error {
	if at, err := os.Stat(path); err == nil && at.Size() > 0 {
		before := path + ".before"
		if err := os.Rename(path, before); err != nil {
			return err
		}
		log.Error("a daemon has crashed while its log was not taken; its stacks are in a file", "path", before)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if standardError().fd == unix.Stderr {
		return errors.New("standard error has no second descriptor")
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	w.Taken = func(taken bool) {
		to := standardError().fd
		if !taken {
			to = int(file.Fd())
		}
		_ = unix.Dup3(to, unix.Stderr, 0)
	}
	return nil
}

// descriptor writes to a file without changing how others who share it see it. One of them may have made it
// non-blocking.
type descriptor struct{ fd int }

// standardError is standard error by another descriptor. Where nobody reads it any more, a write to this one fails; one
// to descriptor 2 would end the daemon by SIGPIPE.
var standardError = sync.OnceValue(func() descriptor {
	fd, err := unix.FcntlInt(uintptr(unix.Stderr), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return descriptor{unix.Stderr}
	}
	return descriptor{fd}
})

// Write implements io.Writer. It waits for as long as it takes.
func (d descriptor) Write(p []byte) (n int, err error) {
	for n < len(p) {
		more, err := unix.Write(d.fd, p[n:])
		n += max(more, 0)
		switch {
		case err == unix.EAGAIN:
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLOUT}}, -1)
			if err != nil && err != unix.EINTR {
				return n, fmt.Errorf("poll standard error: %w", err)
			}
		case err == nil && more == 0:
			return n, io.ErrShortWrite
		case err != nil && err != unix.EINTR:
			return n, os.NewSyscallError("write", err)
		}
	}
	return n, nil
}

// lastError writes why a daemon does not start, and does not wait for ever for whoever reads it.
type lastError struct{ to *telemetry.Writer }

// boundLastError has that write the errors of a command, but to a terminal, where somebody sees that it waits.
func boundLastError(cmd *cobra.Command) {
	if at, err := os.Stderr.Stat(); err == nil && at.Mode()&fs.ModeCharDevice == 0 {
		cmd.Root().SetErr(lastError{telemetry.NewWriter(standardError(), limit.OwnLog.Limit)})
	}
}

// Write implements io.Writer.
func (h lastError) Write(p []byte) (int, error) {
	defer h.to.Flush(lastWords)
	return h.to.Write(p)
}

// logProblem says that the daemon's log is not taken.
func logProblem(w *telemetry.Writer) []admin.Problem {
	s := w.State()
	if s.Since.IsZero() {
		return nil
	}
	const who = "what reads the daemon's standard error (journald under systemd)"
	past := time.Since(s.Since).Round(time.Second)
	text := fmt.Sprintf("the daemon's log: %s has taken no line for %s, and %d lines were lost since the daemon started; "+
		"pods do not mind: look whether it hangs", who, past, s.Lost)
	if s.Err != nil {
		text = fmt.Sprintf("the daemon's log: it cannot be written to %s: %v; %d lines were lost since the daemon started; "+
			"pods do not mind: look whether that has ended, or its disk is full, and restart the daemon if it was started anew",
			who, s.Err, s.Lost)
	}
	return []admin.Problem{{Message: text, Since: s.Since}}
}
