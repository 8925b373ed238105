package runtime

import (
	"context"
	"os"
	"path/filepath"

	"berth/internal/monitor/wire"
)

// inputFile, in a container's directory, names the daemon through which a client had an input that is meant for one.
// Clients do not outlive their daemon: where it is another, the input has ended.
const inputFile = "input"

// noteInput notes that a client of this daemon has a container's input.
func noteInput(c *Config, pod, ctr string) error {
	return os.WriteFile(filepath.Join(c.bundle(pod, ctr), inputFile), []byte(c.name), 0o600)
}

// inputEnded reports whether a client of an earlier daemon has had a container's input.
func inputEnded(c *Config, pod, ctr string) bool {
	name, err := os.ReadFile(filepath.Join(c.bundle(pod, ctr), inputFile))
	return err == nil && string(name) != c.name
}

// endInput lets a container see the end of its input that an earlier daemon has not told it.
func endInput(ctx context.Context, l *link, c *client, e wire.Container) {
	if !e.StdinOnce || !inputEnded(l.cfg, l.pod, e.ID) {
		return
	}
	l.handles.endStdin(e.ID)
	if _, err := c.quick(ctx, wire.Request{Op: wire.CloseStdin, Container: e.ID}); err != nil {
		l.cfg.Log.Warn("a container is not told the end of its input, whose client has gone with the last daemon",
			"pod", l.pod, "container", e.ID, "error", err)
	}
}
