package pod

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// defaultCreateTimeout is of a handler that has none.
const defaultCreateTimeout = 2 * time.Minute

// handler is how the pod's runtime is called: as it was when the pod was made, because what a runtime keeps of
// containers is its own. Only a program that is no longer in its place is looked for where the configuration has it
// now.
func (c *Config) handler(r *sandbox.Record) (runtime.Handler, error) {
	if r.Using != nil && !moved(r.Using) {
		return *r.Using, nil
	}
	now, err := c.Handlers(handlerName(r))
	if err != nil && r.Using == nil {
		return now, fmt.Errorf("the pod's runtime handler: %w", err)
	}
	return asMade(r, now), nil
}

// handlerSpec is the handler of the pod's new containers, and what the configuration says of them, both of one moment.
// One that was taken out of the configuration says nothing, and a container that it forbade something would get it.
func (c *Config) handlerSpec(r *sandbox.Record) (runtime.Handler, spec.Handler, error) {
	name := handlerName(r)
	now, sh, err := c.HandlerSpec(name)
	if err != nil {
		return now, sh, fail.New(errdefs.ErrFailedPrecondition,
			"the pod's runtime handler %q was taken out of the configuration: its containers run on, but a new one needs "+
				"the handler back, or a new pod", name)
	}
	h := asMade(r, now)
	sh.Infra = h.Infra
	h.Timeout = cmp.Or(now.Timeout, defaultCreateTimeout)
	return h, sh, nil
}

// handlerName is what the configuration calls the handler with which the pod was made.
func handlerName(r *sandbox.Record) string {
	if r.Using != nil && r.Using.Name != "" {
		return r.Using.Name
	}
	return cmp.Or(r.Runtime, r.Handler)
}

// asMade is the handler with which the pod was made. now is that of its name in the configuration, or nothing.
func asMade(r *sandbox.Record, now runtime.Handler) runtime.Handler {
	if r.Using == nil {
		return now
	}
	h := *r.Using
	if now.Path != "" && moved(&h) {
		h.Path = now.Path
	}
	return h
}

// moved says that a handler's program is no longer in its place.
func moved(h *runtime.Handler) bool {
	_, err := os.Stat(h.Path)
	return errors.Is(err, fs.ErrNotExist)
}

// createTimeout bounds the OCI runtime's create of a container of the pod, and its start.
func (c *Config) createTimeout(r *sandbox.Record) time.Duration {
	h, err := c.Handlers(cmp.Or(r.Runtime, r.Handler))
	if err != nil {
		return defaultCreateTimeout
	}
	return cmp.Or(h.Timeout, defaultCreateTimeout)
}
