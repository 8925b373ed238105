package pod

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/runtime"
	"berth/internal/spec"
)

// defaultCreateTimeout is of a handler that has none.
const defaultCreateTimeout = 2 * time.Minute

// handler is how the pod's runtime is called: as it was when the pod was made, because what a runtime keeps of containers
// is its own. Only a program that is no longer in its place is looked for where the configuration has it now.
func (c *Config) handler(r *Record) (runtime.Handler, error) {
	if r.Using == nil {
		h, err := c.Handlers(cmp.Or(r.Runtime, r.Handler))
		if err != nil {
			err = fmt.Errorf("the pod's runtime handler: %w", err)
		}
		return h, err
	}
	h := *r.Using
	if _, err := os.Stat(h.Path); errors.Is(err, fs.ErrNotExist) {
		if now, err := c.Handlers(h.Name); err == nil {
			h.Path = now.Path
		}
	}
	return h, nil
}

// handlerSpec is the handler of the pod's new containers, and what the configuration says of them. One that was taken out of
// the configuration says nothing, and a container that it forbade something would get it.
func (c *Config) handlerSpec(r *Record) (runtime.Handler, spec.Handler, error) {
	h, err := c.handler(r)
	if err != nil {
		return h, spec.Handler{}, err
	}
	name := cmp.Or(h.Name, r.Runtime)
	now, err := c.Handlers(name)
	if err != nil {
		return h, spec.Handler{}, Fail(errdefs.ErrFailedPrecondition,
			"the pod's runtime handler %q was taken out of the configuration: its containers run on, but a new one needs the handler back, or a new pod", name)
	}
	sh := c.HandlerSpec(name)
	sh.Infra = h.Infra
	h.Timeout = cmp.Or(now.Timeout, defaultCreateTimeout)
	return h, sh, nil
}

// createTimeout bounds the OCI runtime's create of a container of the pod, and its start.
func (c *Config) createTimeout(r *Record) time.Duration {
	h, err := c.Handlers(cmp.Or(r.Runtime, r.Handler))
	if err != nil {
		return defaultCreateTimeout
	}
	return cmp.Or(h.Timeout, defaultCreateTimeout)
}
