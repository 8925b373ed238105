package preload

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"berth/internal/fail"
	"berth/internal/limit"
	"berth/internal/record"
)

// intake is the goroutine that looks at the directory, and decides what is imported and pulled. It alone has what is
// here; imports and pulls run beside it, and tell it how they ended.
type intake struct {
	dir    *Directory
	ledger *ledger
	puller *puller
	watch  *watch
	files  map[string]*file
	todo   []string    // the files that are to be read, by name
	lookAt time.Time   // the directory is looked at then, whatever happens before
	reads  string      // the archive that is being imported; "" for none
	ended  chan func() // what follows from an import or a pull that has ended
}

// file is a file of the directory as it was seen last.
type file struct {
	identity
	since    time.Time // it has been as it is, as far as was seen
	failures int
	due      time.Time // it is not read before
	read     bool      // a list, as it is
}

func newIntake(d *Directory) *intake {
	in := &intake{
		dir: d, ledger: openLedger(d), watch: newWatch(d.Path, d.Log), files: map[string]*file{},
		ended: make(chan func()),
	}
	in.puller = &puller{dir: d, ledger: in.ledger, ended: in.ended, pulls: map[string]*pull{}}
	return in
}

// run takes in what there is until ctx ends.
func (in *intake) run(ctx context.Context) {
	defer in.watch.close()
	if err := record.Tidy(filepath.Dir(in.dir.Record)); err != nil {
		in.dir.Log.Warn("something is left beside the record of the directory of images", "error", err)
	}
	for again := true; ; {
		began := time.Now()
		if again {
			in.look(began)
			in.lookAt = soonest(began.Add(in.watch.every(in.dir.pace)), in.plan(began))
		}
		next := soonest(in.lookAt, soonest(in.begin(ctx, time.Now()), in.ledger.keep(time.Now())))
		again = in.rest(ctx, next, max(in.dir.pace.gather, 20*time.Since(began))) || !time.Now().Before(in.lookAt)
		if ctx.Err() != nil {
			in.ledger.save()
			return
		}
	}
}

// rest waits until that time, or until something happens: a change of the directory counts gather later. It reports
// whether the directory has to be looked at.
func (in *intake) rest(ctx context.Context, until time.Time, gather time.Duration) (look bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case end := <-in.ended:
		end()
		return false
	case <-in.dir.again:
		in.forgive()
	case <-in.watch.changed:
		timer.Reset(gather)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return true
}

// forgive has what has failed be tried at once.
func (in *intake) forgive() {
	for _, f := range in.files {
		f.due, f.read = time.Time{}, false
	}
	for _, p := range in.puller.pulls {
		p.due = time.Time{}
	}
}

// look sees what lies in the directory now.
func (in *intake) look(now time.Time) {
	dir, err := openDir(in.dir.Path)
	if dir == nil {
		in.watch.lose()
		in.dir.tell(key{of: whole}, in.dir.Path, err)
		if err == nil { // there is none
			in.forgetAllBut(nil)
		}
		return
	}
	defer dir.Close()
	in.watch.follow(dir)
	all, err := scan(dir)
	in.dir.tell(key{of: whole}, in.dir.Path, err)
	if err != nil && !fail.As[*limit.Error](err) {
		return // what was not seen may be there
	}
	listed, there := map[string]bool{}, map[string]bool{}
	for _, f := range all {
		listed[f.name] = true
		in.dir.tell(key{f.name, seen}, in.dir.pathOf(f.name), f.err)
		if f.err != nil {
			continue
		}
		there[f.name] = true
		if old := in.files[f.name]; old == nil || old.identity != f.identity {
			in.files[f.name] = &file{identity: f.identity, since: firstSeen(f.identity, old, now)}
		}
	}
	in.dir.problems.keep(func(k key) bool { return k.of != seen || listed[k.name] })
	in.forgetAllBut(there)
}

// firstSeen is since when a file is as it is: for one that was there at the first look, since it was changed.
func firstSeen(id identity, old *file, now time.Time) time.Time {
	if changed := time.Unix(0, id.Changed); old == nil && changed.Before(now) {
		return changed
	}
	return now
}

// forgetAllBut forgets files that are gone.
func (in *intake) forgetAllBut(there map[string]bool) {
	maps.DeleteFunc(in.files, func(name string, _ *file) bool { return !there[name] })
	in.ledger.forgetAllBut(there)
	in.dir.problems.keep(func(k key) bool { return k.of != read || there[k.name] })
}

// plan decides which files are to be read and which names to be pulled, and reads the lists. It returns when to look
// again.
func (in *intake) plan(now time.Time) (next time.Time) {
	next = now.Add(in.dir.pace.every)
	in.todo = nil
	for _, name := range slices.Sorted(maps.Keys(in.files)) {
		f := in.files[name]
		if !in.wants(name, f) {
			continue
		}
		if due := f.readable(in.dir.pace); due.After(now) {
			next = soonest(next, due)
		} else if sortOf(name) == list {
			in.readList(name, f, now)
			next = soonest(next, f.due)
			continue
		}
		in.todo = append(in.todo, name)
	}
	in.puller.plan()
	if in.ledger.noteDurable() {
		next = soonest(next, now.Add(in.dir.pace.busy))
	}
	return next
}

// readable is from when on a file may be read.
func (f *file) readable(p pace) time.Time {
	if settled := f.since.Add(p.settled); settled.After(f.due) {
		return settled
	}
	return f.due
}

// wants reports whether a file has to be read.
func (in *intake) wants(name string, f *file) bool {
	t := in.ledger.Files[name]
	switch {
	case t == nil || t.identity != f.identity:
		return true
	case sortOf(name) == list:
		return !f.read
	}
	lacking := func(i takenImage) bool { return i.lacking(in.dir.Store) }
	return in.dir.Pin && slices.ContainsFunc(t.Images, lacking)
}

// begin begins what can be begun, and returns when something else can; zero for nothing.
func (in *intake) begin(ctx context.Context, now time.Time) (next time.Time) {
	next = in.puller.begin(ctx, now)
	var later []string
	for in.reads == "" && len(in.todo) > 0 {
		name := in.todo[0]
		in.todo = in.todo[1:]
		f := in.files[name]
		switch {
		case f == nil || sortOf(name) != archive || !in.wants(name, f):
		case f.readable(in.dir.pace).After(now):
			later, next = append(later, name), soonest(next, f.readable(in.dir.pace))
		default:
			in.beginImport(ctx, name, f)
		}
	}
	in.todo = append(in.todo, later...)
	return next
}

// soonest is the earlier of two times, of which a zero one is none.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
