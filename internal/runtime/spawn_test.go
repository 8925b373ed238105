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

// countedScope counts how often the monitors' scope is held and let go.
type countedScope struct{ held, let int }

func (h *countedScope) Hold(context.Context) (func(), error) {
	h.held++
	return func() { h.let++ }, nil
}

// TestScopeThatGoesBeforeABirth removes the group in which a monitor is about to be born, as systemd does with the
// scope around it when the last monitor there has ended.
func TestScopeThatGoesBeforeABirth(t *testing.T) {
	name := "berth-" + newID()[:6]
	for _, c := range []struct{ goes, held int }{{0, 1}, {2, 3}, {births, births}} {
		h, tries := &countedScope{}, 0
		err := (&Config{Scope: h}).inScope(t.Context(), func() error {
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
			t.Errorf("of a scope that goes %d times: %v, held %d times and let go %d times", c.goes, err, h.held, h.let)
		}
	}
	h := &countedScope{}
	if err := (&Config{Scope: h}).inScope(t.Context(), func() error {
		return os.ErrPermission
	}); !errors.Is(err, os.ErrPermission) || h.held != 1 {
		t.Errorf("what is no matter of the scope: %v, held %d times", err, h.held)
	}
	if err := (&Config{}).inScope(t.Context(), func() error { return fs.ErrNotExist }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a scope: %v", err)
	}
}
