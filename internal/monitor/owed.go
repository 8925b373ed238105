package monitor

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// The run directory of a container that has ended is removed soon, and its log may be owed something then: a notice of
// what was dropped because its disk was full, or output that a disk which hangs has not taken. The daemon moves the
// journal and the bundle to wire.Owed/<id> in the pod's run directory. So the next monitor can pay it where this one is
// killed.

func owedDir(m *Monitor, ctr string) string { return filepath.Join(m.cfg.Dir, wire.Owed, ctr) }

// removeOwed forgets what was owed to the log of a container.
func removeOwed(m *Monitor, ctr string) { _ = os.RemoveAll(owedDir(m, ctr)) }

// payers is how many logs are paid at a time. Each holds descriptors and, on a disk that hangs, a thread.
const payers = 8

// debt is what another monitor has owed to the log of a deleted container. held is the journal that this monitor has
// taken over with that container; the daemon may just be moving it.
type debt struct {
	ctr  string
	held fileID
}

// takeOwed pays what another monitor has owed to the logs of containers that are forgotten. It returns at once, and is
// called before a daemon is listened to: what a daemon moves from then on is this monitor's own.
func takeOwed(m *Monitor) {
	entries, _ := os.ReadDir(filepath.Join(m.cfg.Dir, wire.Owed))
	if len(entries) == 0 {
		return
	}
	debts := make(chan debt, len(entries))
	for _, e := range entries {
		d := debt{ctr: e.Name()}
		if c := m.containers[d.ctr]; c != nil {
			d.held = c.out.log.kept
		}
		debts <- d
	}
	close(debts)
	for range min(payers, len(entries)) {
		go payDebts(m, debts)
	}
}

// payDebts forgets what it cannot read. What it cannot open now is left for the next monitor.
func payDebts(m *Monitor, debts <-chan debt) {
	for d := range debts {
		err := payDebt(m, d)
		var errno unix.Errno
		switch {
		case err == nil:
		case errors.As(err, &errno):
			logf("what is owed to the log of %s is not paid yet: %v", d.ctr, err)
		default:
			logf("what is owed to the log of %s is lost: %v", d.ctr, err)
			removeOwed(m, d.ctr)
		}
	}
}

// payDebt returns when it is paid, or was tried for long enough. Where the journal is not there, the daemon was killed
// before it moved it, and does that again, or it has removed the container.
func payDebt(m *Monitor, d debt) error {
	dir := owedDir(m, d.ctr)
	j, err := openJournal(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if j.id() == d.held { // who has it pays
		j.close()
		return nil
	}
	var b wire.Bundle
	if err := readJSON(filepath.Join(dir, bundleFile), &b); err != nil {
		j.close()
		return err
	}
	if b.Log == nil { // nothing can be owed to none
		j.close()
		removeOwed(m, d.ctr)
		return nil
	}
	w := &logWriter{m: m, ctr: d.ctr, apart: make(chan struct{})}
	w.keep(j)
	bringRest(w, b.Log)
	<-w.apart
	return nil
}
