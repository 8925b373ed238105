package pod

import (
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// TestStartWaitsForAMonitor has no monitor answer for a moment: the container may run, and is not killed for that.
func TestStartWaitsForAMonitor(t *testing.T) {
	b := open(t)
	b.drv.silent = 3
	_, ctr := started(t, b)
	if _, c, err := b.Catalog.GetContainer(ctr); err != nil || c.State != sandbox.Running {
		t.Fatalf("got %+v, %v", c, err)
	}
	if b.drv.killed > 0 || b.drv.silent > 0 {
		t.Errorf("it was killed %d times, and %d answers are left", b.drv.killed, b.drv.silent)
	}
}

// TestStartOfTheLastDaemon goes on with a start that the last daemon has recorded: whether its monitor works on it, or
// was not asked yet, it is asked again. A container that somebody has stopped meanwhile stays as it is.
func TestStartOfTheLastDaemon(t *testing.T) {
	for name, stopped := range map[string]bool{"started": false, "stopped meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			id, err := b.Run(t.Context(), podConfig("a"), "")
			if err != nil {
				t.Fatal(err)
			}
			ctr, err := b.Create(t.Context(), id, containerConfig("c"))
			if err != nil {
				t.Fatal(err)
			}
			p, _, err := b.Catalog.findContainer(ctr)
			if err == nil {
				err = p.publish("container.starting", func(r *sandbox.Record) error {
					return r.Edit(ctr, func(c *sandbox.Container) error {
						c.StopAsked = stopped
						return c.MoveTo(sandbox.Starting)
					})
				})
			}
			if err != nil {
				t.Fatal(err)
			}
			b.drv.inv.Containers = map[string]runtime.Found{string(ctr): {State: runtime.Created}}
			b.reopen(t)
			state := func() sandbox.State {
				_, c, err := b.Catalog.GetContainer(ctr)
				if err != nil {
					t.Fatal(err)
				}
				return c.State
			}
			if !stopped {
				wait(t, "the start", func() bool { return state() == sandbox.Running })
				return
			}
			time.Sleep(100 * time.Millisecond)
			if got := state(); got != sandbox.Starting {
				t.Errorf("it is %s", got)
			}
		})
	}
}

func containerConfig(name string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: "img"},
		Command: []string{"x"}, Linux: &runtimeapi.LinuxContainerConfig{},
	}
}
