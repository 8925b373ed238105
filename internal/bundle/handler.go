package bundle

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

// Handlers finds how OCI runtimes are called. Both functions are asked each time: the configuration may be read again.
type Handlers struct {
	// Find finds a runtime handler as it is configured now; "" is the default; NotFound for what is not configured.
	Find func(name string) (runtime.Handler, error)
	// Spec is what Find finds, and what the same configuration says of that handler's containers.
	Spec func(name string) (runtime.Handler, spec.Handler, error)
}

// defaultCreateTimeout is of a handler that has none.
const defaultCreateTimeout = 2 * time.Minute

// Of returns how the pod's runtime is called: as it was when the pod was made, because each runtime keeps its own state
// of containers. Only a program that is no longer there is looked for where the configuration has it now.
func (a Handlers) Of(r *sandbox.Record) (runtime.Handler, error) {
	if r.Using != nil && !moved(r.Using) {
		return *r.Using, nil
	}
	now, err := a.Find(handlerName(r))
	if err != nil && r.Using == nil {
		return now, fmt.Errorf("the pod's runtime handler: %w", err)
	}
	return asMade(r, now), nil
}

// ForNew returns the handler of the pod's new containers and its options, both of one moment. It fails for a handler
// that was taken out of the configuration, and for one whose options cannot be had: without them a container would get
// what they forbid.
func (a Handlers) ForNew(r *sandbox.Record) (runtime.Handler, spec.Handler, error) {
	name := handlerName(r)
	now, sh, err := a.Spec(name)
	if err != nil && !fail.Is(err, errdefs.ErrNotFound) {
		return now, sh, err
	}
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

// moved says that a handler's program is no longer where it was.
func moved(h *runtime.Handler) bool {
	_, err := os.Stat(h.Path)
	return errors.Is(err, fs.ErrNotExist)
}

// CreateTimeout bounds the OCI runtime's create of a container of the pod, and its start.
func (a Handlers) CreateTimeout(r *sandbox.Record) time.Duration {
	h, err := a.Find(cmp.Or(r.Runtime, r.Handler))
	if err != nil {
		return defaultCreateTimeout
	}
	return cmp.Or(h.Timeout, defaultCreateTimeout)
}
