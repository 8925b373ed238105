package runtime

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"berth/internal/cgroup"
)

// homes counts how often the monitors' home is held and let go.
type homes struct {
	Units
	held, let int
}

func (h *homes) HoldHome(context.Context) (func(), error) {
	h.held++
	return func() { h.let++ }, nil
}

// TestHomeThatGoesBeforeABirth removes the group in which a monitor is about to be born, as systemd does with the scope around it when
// the last monitor there has ended.
func TestHomeThatGoesBeforeABirth(t *testing.T) {
	name := "berth-" + newID()[:6]
	for _, c := range []struct{ goes, held int }{{0, 1}, {2, 3}, {births, births}} {
		h, tries := &homes{}, 0
		err := (&Config{Units: h}).atHome(t.Context(), func() error {
			tries++
			group, err := cgroup.Make(host.tracking, name)
			if err != nil {
				return err
			}
			g, err := group.Open()
			if err != nil {
				return err
			}
			defer g.Close()
			if tries <= c.goes {
				if err := group.Remove(); err != nil {
					return err
				}
			}
			cmd := exec.Command("/bin/true")
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.Fd())}
			return errors.Join(cmd.Run(), group.Remove())
		})
		if (err == nil) != (c.goes < births) || h.held != c.held || h.let != c.held {
			t.Errorf("of a home that goes %d times: %v, held %d times and let go %d times", c.goes, err, h.held, h.let)
		}
	}
	h := &homes{}
	if err := (&Config{Units: h}).atHome(t.Context(), func() error { return os.ErrPermission }); !errors.Is(err, os.ErrPermission) || h.held != 1 {
		t.Errorf("what is no matter of the home: %v, held %d times", err, h.held)
	}
	if err := (&Config{}).atHome(t.Context(), func() error { return fs.ErrNotExist }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without units: %v", err)
	}
}
