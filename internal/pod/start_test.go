package pod

import (
	"context"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/test/timeouts"
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
			_, ctr := starting(t, b, stopped)
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

// starting makes a pod with a container whose record says that it is being started, and perhaps that a client has asked
// for its end since.
func starting(t *testing.T, b *bench, stopped bool) (id, ctr sandbox.ID) {
	t.Helper()
	id, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	ctr, err = b.Create(t.Context(), id, containerConfig("c"))
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
	return id, ctr
}

// slowToHear are plugins that take their time to hear that a container runs.
type slowToHear struct {
	asked
	heard  chan Moment   // told of each moment of a container
	resume chan struct{} // closed when they may go on
}

func (s *slowToHear) Tell(_ context.Context, m Moment, _ *sandbox.Record, c *sandbox.Container) ([]Change, error) {
	if c != nil {
		s.heard <- m
	}
	if m == ContainerStarted {
		<-s.resume
	}
	return nil, nil
}

// TestPluginsHearOfAStartThatWasNotRecorded kills a daemon between the start of a container and its record. Plugins
// that join the next one are shown a container that is not started, and are told that it runs. The adoption does not
// wait for them, and they are told of the container's end after that.
func TestPluginsHearOfAStartThatWasNotRecorded(t *testing.T) {
	for name, ends := range map[string]bool{"it runs on": false, "it ends meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			pod, ctr := starting(t, b, false)
			b.drv.inv.Containers = map[string]runtime.Found{string(ctr): {State: runtime.Running, StartedAt: time.Now()}}
			s := &slowToHear{heard: make(chan Moment, 10), resume: make(chan struct{})}
			b.cfg.Plugins = s
			b.reopen(t)
			if _, c, err := b.Catalog.GetContainer(ctr); err != nil || c.State != sandbox.Running {
				t.Errorf("after the adoption: %+v, %v", c, err)
			}
			hears := func(want Moment) {
				t.Helper()
				select {
				case got := <-s.heard:
					if got != want {
						t.Errorf("they heard of moment %d, wanted %d", got, want)
					}
				case <-time.After(timeouts.For(10 * time.Second)):
					t.Errorf("they heard nothing of moment %d", want)
				}
			}
			hears(ContainerStarted)
			if ends {
				b.drv.end(string(pod), string(ctr), runtime.Exit{Code: 3})
				time.Sleep(50 * time.Millisecond)
			}
			close(s.resume)
			if ends {
				hears(ContainerStop)
			}
			if err := b.Start(t.Context(), ctr); (err != nil) != ends {
				t.Errorf("a start that is asked for again: %v", err)
			}
			select {
			case m := <-s.heard:
				t.Errorf("they heard of moment %d, too", m)
			case <-time.After(50 * time.Millisecond):
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
