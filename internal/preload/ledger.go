package preload

import (
	"maps"
	"slices"
	"time"
)

// ledger keeps what was taken in: in memory, in its record, and pinned. The intake's goroutine alone uses it.
type ledger struct {
	dir *Directory
	*memory
	unsaved, unpinned bool
	saved, pinned     time.Time // when that was done last
	pins              []string  // in force
}

func openLedger(d *Directory) *ledger {
	m, _ := readMemory(d.Record, d.Path) // Open has told of an error
	m.forgetLost(d.Store)
	return &ledger{dir: d, memory: m, unpinned: true}
}

// put notes what came of a file.
func (l *ledger) put(name string, t *taken) {
	l.Files[name] = t
	l.unsaved, l.unpinned = true, true
}

// forgetAllBut forgets files that are gone. Their images stay, and are not pinned any more.
func (l *ledger) forgetAllBut(there map[string]bool) {
	before := len(l.Files)
	maps.DeleteFunc(l.Files, func(name string, _ *taken) bool { return !there[name] })
	if len(l.Files) < before {
		l.unsaved, l.unpinned = true, true
	}
}

// notePulled notes that a name of a list was there once.
func (l *ledger) notePulled(t *taken, name string) {
	if t == nil || t.Pulled[name] {
		return
	}
	if t.Pulled == nil {
		t.Pulled = map[string]bool{}
	}
	t.Pulled[name], l.unsaved = true, true
}

// noteDurable notes which archives are on the disk by now, and reports whether some are not.
func (l *ledger) noteDurable() (some bool) {
	for _, t := range l.Files {
		if len(t.Images) == 0 || t.Durable {
			continue
		}
		if t.Durable = t.isDurable(l.dir.Store); t.Durable {
			l.unsaved = true
		}
		some = some || !t.Durable
	}
	return some
}

// keep pins and saves what has changed, but not too often: both take longer the more there is. It returns when to do so
// again; zero for never.
func (l *ledger) keep(now time.Time) (next time.Time) {
	if l.unpinned && now.Sub(l.pinned) >= l.dir.pace.busy && !l.dir.abandoned.Load() {
		var pins []string
		if l.dir.Pin {
			pins = l.memory.pins()
		}
		if !slices.Equal(pins, l.pins) {
			l.pins = pins
			l.dir.SetPins(pins)
		}
		l.unpinned, l.pinned = false, time.Now()
	}
	if l.unsaved && now.Sub(l.saved) >= l.dir.pace.busy {
		l.save()
	}
	if l.unpinned || l.unsaved {
		return now.Add(l.dir.pace.busy)
	}
	return time.Time{}
}

// save writes the record, unless nothing has changed, or another Directory is in charge.
func (l *ledger) save() {
	if !l.unsaved || l.dir.abandoned.Load() {
		return
	}
	err := memoryKind.Write(l.dir.Record, l.memory)
	l.dir.tell(key{of: saved}, l.dir.Record, err)
	if err == nil {
		l.dir.Dirty(l.dir.Record)
	}
	l.unsaved, l.saved = err != nil, time.Now()
}
