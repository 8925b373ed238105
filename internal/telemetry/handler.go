package telemetry

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
)

// handler makes each line in a buffer of its own, and writes it then. Those of the library hold a lock while they
// write: where a line takes long, those who wait for theirs would wait for each other's, too.
type handler struct {
	to    io.Writer
	level slog.Leveler
	form  func(line io.Writer) slog.Handler
}

// buffers have room for a line.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Enabled implements slog.Handler.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	line := buffers.Get().(*bytes.Buffer)
	line.Reset()
	err := h.form(line).Handle(ctx, r)
	if err == nil {
		_, err = h.to.Write(line.Bytes())
	}
	if line.Cap() <= spareSize {
		buffers.Put(line)
	}
	return err
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func(inner slog.Handler) slog.Handler { return inner.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return h.with(func(inner slog.Handler) slog.Handler { return inner.WithGroup(name) })
}

func (h *handler) with(more func(slog.Handler) slog.Handler) slog.Handler {
	other := *h
	other.form = func(line io.Writer) slog.Handler { return more(h.form(line)) }
	return &other
}
