package monitor

import (
	"errors"
	"os"
	"path/filepath"

	"berth/internal/monitor/wire"
)

// The run directory of a container that has ended is removed soon, and its log may be owed something then: a notice of
// what was dropped because its disk was full, or output that a disk which hangs has not taken. The daemon moves the
// journal and the bundle to wire.Owed/<id> in the pod's run directory. So the next monitor can pay it where this one is
// killed.

func owedDir(m *Monitor, ctr string) string { return filepath.Join(m.cfg.Dir, wire.Owed, ctr) }

// removeOwed forgets what was owed to the log of a container.
func removeOwed(m *Monitor, ctr string) { _ = os.RemoveAll(owedDir(m, ctr)) }

// takeOwed pays what another monitor has owed to the logs of containers that are forgotten.
func takeOwed(m *Monitor) {
	entries, _ := os.ReadDir(filepath.Join(m.cfg.Dir, wire.Owed))
	for _, e := range entries {
		if err := takeOwedOf(m, e.Name()); err != nil {
			logf("what is owed to the log of %s is lost: %v", e.Name(), err)
			removeOwed(m, e.Name())
		}
	}
}

// takeOwedOf is for one container. Where the journal is not there yet, the daemon was killed before it moved it, and
// does that again.
func takeOwedOf(m *Monitor, ctr string) error {
	dir := owedDir(m, ctr)
	j, err := openJournal(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var b wire.Bundle
	if err := readJSON(filepath.Join(dir, bundleFile), &b); err != nil {
		j.close()
		return err
	}
	if b.Log == nil { // nothing can be owed to none
		j.close()
		removeOwed(m, ctr)
		return nil
	}
	w := &logWriter{m: m, ctr: ctr, apart: true}
	w.keep(j)
	go settle(w, b.Log)
	return nil
}
