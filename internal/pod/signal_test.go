package pod

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/sandbox"
)

// sent are the signals that the runtime was asked to send.
func sent(d *driver) []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.signals)
}

// TestSignal sends a running container signals by name and by number, and has one end it.
func TestSignal(t *testing.T) {
	b := open(t)
	_, ctr := started(t, b)
	b.drv.deaf = true
	for _, name := range []string{"SIGUSR1", "usr1", "10"} {
		if err := Signal(t.Context(), b.Pods, ctr, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if want := []int{10, 10, 10}; !slices.Equal(sent(b.drv), want) {
		t.Errorf("sent %v, wanted %v", sent(b.drv), want)
	}
	if _, c, err := b.Catalog.GetContainer(ctr); err != nil || c.State != sandbox.Running {
		t.Errorf("the container is %+v, %v", c, err)
	}
	b.drv.deaf = false
	if err := Signal(t.Context(), b.Pods, ctr, "TERM"); err != nil {
		t.Fatal(err)
	}
	wait(t, "the container's end", func() bool {
		_, c, err := b.Catalog.GetContainer(ctr)
		return err == nil && c.State == sandbox.Exited && c.ExitCode == 128+int32(unix.SIGTERM)
	})
}

// TestSignalsRefused wants nothing to be sent for a signal that there is not, and to a container that does not run.
func TestSignalsRefused(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	idle, err := b.Create(t.Context(), pod, containerConfig("idle"))
	if err != nil {
		t.Fatal(err)
	}
	ended, err := b.Create(t.Context(), pod, containerConfig("ended"))
	if err == nil {
		err = b.Start(t.Context(), ended)
	}
	if err == nil {
		err = b.StopContainer(t.Context(), ended, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	before := sent(b.drv)
	for name, c := range map[string]struct {
		id     sandbox.ID
		signal string
		kind   func(error) bool
		words  string
	}{
		"no signal":       {ctr, "", errdefs.IsInvalidArgument, `"" is not a signal`},
		"unknown signal":  {ctr, "SIGNOSUCH", errdefs.IsInvalidArgument, `"SIGNOSUCH" is not a signal`},
		"no container":    {sandbox.NewID(), "TERM", errdefs.IsNotFound, "container"},
		"not started yet": {idle, "TERM", errdefs.IsFailedPrecondition, "created, not running"},
		"ended":           {ended, "TERM", errdefs.IsFailedPrecondition, "exited, not running"},
	} {
		err := Signal(t.Context(), b.Pods, c.id, c.signal)
		if err == nil || !c.kind(err) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !slices.Equal(sent(b.drv), before) {
		t.Errorf("sent %v, wanted none beside %v", sent(b.drv), before)
	}
}
