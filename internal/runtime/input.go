package runtime

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"berth/internal/monitor/wire"
)

// discard reads and throws away what a client sends and nothing takes, or takes any more, until the client ends it: one
// of which nothing is read would be held up, with its pings. An input with a WriteTo of its own, which has failed, has
// been told by that, and what is left of it comes by Read.
func discard(in io.Reader) { _, _ = io.Copy(io.Discard, struct{ io.Reader }{in}) }

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

// endInput lets a container see the end of its input, of which its monitor does not know: the monitor before did not
// answer when the client went, or the client went with an earlier daemon.
func endInput(ctx context.Context, l *link, c *client, e wire.Container) {
	if !e.StdinOnce || !l.handles.stdinEnded(e.ID) && !inputEnded(l.cfg, l.pod, e.ID) {
		return
	}
	l.handles.endStdin(e.ID)
	if _, err := c.quick(ctx, wire.Request{Op: wire.CloseStdin, Container: e.ID}); err != nil {
		warnInput(l, e.ID, err)
	}
}

// closeStdin lets a container see the end of its input, whose client has gone. A monitor that does not answer now does
// that when it answers again, or the next one is told.
func closeStdin(ctx context.Context, r *Runtime, pod, ctr string) {
	l := r.links.known(pod)
	if l == nil {
		return // the pod was removed
	}
	l.handles.endStdin(ctr) // first: from here on, whoever joins a monitor tells it
	_, err := r.call(ctx, pod, wire.Request{Op: wire.CloseStdin, Container: ctr})
	if errors.Is(err, errNoMonitor) {
		warnInput(l, ctr, err)
	}
}

func warnInput(l *link, ctr string, err error) {
	l.cfg.Log.Warn("a container does not see the end of its input, whose client has gone, before its monitor answers or "+
		"is replaced", "pod", l.pod, "container", ctr, "error", err)
}
