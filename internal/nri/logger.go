package nri

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	nrilog "github.com/containerd/nri/pkg/log"
)

// libraryLog is what the library logs to. It has one logger for the whole process, and reads it without a lock.
var libraryLog forwarder

// forwarder is the logger that the library has, and passes on to another what it is told.
type forwarder struct {
	once    sync.Once // makes it the library's
	current atomic.Pointer[logger]
}

// to has l be told what the library says from now on.
func (f *forwarder) to(l logger) {
	f.current.Store(&l)
	f.once.Do(func() { nrilog.Set(f) })
}

func (f *forwarder) Debugf(ctx context.Context, format string, args ...any) {
	f.current.Load().Debugf(ctx, format, args...)
}
func (f *forwarder) Infof(ctx context.Context, format string, args ...any) {
	f.current.Load().Infof(ctx, format, args...)
}
func (f *forwarder) Warnf(ctx context.Context, format string, args ...any) {
	f.current.Load().Warnf(ctx, format, args...)
}
func (f *forwarder) Errorf(ctx context.Context, format string, args ...any) {
	f.current.Load().Errorf(ctx, format, args...)
}

// logger gives the daemon's log what the adaptation has to say. What it does as a matter of course is for those who
// debug.
type logger struct {
	log    *slog.Logger
	health *health
}

func (l logger) say(ctx context.Context, level slog.Level, format string, args []any) {
	if l.log.Enabled(ctx, level) {
		l.log.Log(ctx, level, "NRI: "+fmt.Sprintf(format, args...))
	}
	if level >= slog.LevelWarn {
		l.health.note(fmt.Sprintf(format, args...))
	}
}

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelDebug, format, args)
}
func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelDebug, format, args)
}
func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelWarn, format, args)
}
func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelError, format, args)
}
