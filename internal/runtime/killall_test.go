package runtime

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/thread"
)

// TestKillAllWithoutSignals kills a container to which no signal can be sent, as one whose AppArmor profile has no
// rules for signals: the kill of its cgroups ends it.
func TestKillAllWithoutSignals(t *testing.T) {
	g := newRig(t)
	ctr := g.run("echo on; sleep 1000", func(c *Create) { c.Spec.Process.User.UID = 1234 })
	g.hasSaid(ctr, "on")
	if !exists(filepath.Join(g.cfg.containerGroup(ctr).Path(), "cgroup.kill")) {
		t.Skip("this kernel has no cgroup.kill: cgroups are killed by signals")
	}
	g.ok(thread.Run(func() error {
		if err := dropKill(); err != nil {
			return err
		}
		if err := g.Signal(t.Context(), g.pod, ctr, int(unix.SIGKILL)); err == nil {
			t.Error("the signal was not refused")
		}
		return g.KillAll(t.Context(), g.pod, ctr)
	}))
	if e := g.exit(ctr); e.Signal != 9 {
		t.Errorf("exit %+v", e)
	}
}

// dropKill takes CAP_KILL from this thread, which may then signal processes of its own user alone.
func dropKill() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_KILL
	return unix.Capset(&head, &data[0])
}
