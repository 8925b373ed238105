package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/look"
	"berth/internal/meter"
	"berth/internal/op"
	"berth/internal/record"
	"berth/internal/rootfs"
	"berth/internal/sandbox"
)

// Open reads every record below the root. What it returns can be read at once; Recover finds out what still runs. One
// bad record never stops the others: it is a problem that Problems reports, and its id stays taken.
func Open(cfg Config) (*Pods, error) {
	if cfg.Retry == (op.Backoff{}) {
		cfg.Retry = op.Backoff{First: time.Second, Max: time.Minute}
	}
	cfg.Bundle.Layout, cfg.Bundle.Log, cfg.Bundle.Volumes = cfg.Layout, cfg.Log, &look.Disks{}
	s := &Pods{cfg: cfg, runtime: cfg.Runtime}
	s.bundle = &s.cfg.Bundle
	s.worker.ctx, s.worker.cancel = context.WithCancel(s.board.Under(context.Background()))
	s.Limiter, s.notifier = newLimiter(s)
	s.worker.pauses, s.Feed.log = cfg.Retry, cfg.Log
	s.worker.last = func() { persistAll(s.Catalog.index.Load()) }
	first, err := freshState(&cfg)
	if err != nil {
		return nil, err
	}
	x := (&index{}).clone()
	x.pods, x.names, x.containers, x.damaged = map[sandbox.ID]*pod{}, map[string]*pod{}, map[sandbox.ID]*pod{},
		map[sandbox.ID]damaged{}
	entries, err := os.ReadDir(cfg.PodsRoot())
	if err != nil {
		return nil, fmt.Errorf("read the pods' records: %w", err)
	}
	for _, e := range entries {
		if id := sandbox.ID(e.Name()); id.Valid() {
			load(s, x, id, first)
		}
	}
	s.Catalog.index.Store(x)
	s.cfg.Bundle.Projects = rootfs.CountsProjects(cfg.PodsRoot())
	s.Meter, s.Sessions = newMeter(s), newSessions(s)
	for _, p := range x.pods {
		readExits(p)
	}
	for id, d := range x.damaged {
		retryDamaged(s, id, d)
	}
	return s, nil
}

// freshState makes the directories and removes the state of another boot, which is still there if its directory is on a
// disk. first says that no daemon has run in this boot yet, as far as one can be sure.
func freshState(cfg *Config) (first bool, err error) {
	l := &cfg.Layout
	mark := filepath.Join(l.State, "boot")
	was, err := os.ReadFile(mark)
	first = errors.Is(err, fs.ErrNotExist) || len(was) > 0 && string(was) != cfg.Boot
	if err == nil && len(was) > 0 && string(was) != cfg.Boot {
		for _, dir := range []string{l.PodsState(), filepath.Join(l.State, "runtime")} {
			if err := removeDir(dir); err != nil { // a boot leaves no mounts: one that is there is in use
				return false, fmt.Errorf("clear the state of an earlier boot: %w", err)
			}
		}
	}
	for _, dir := range []string{l.PodsRoot(), l.PodsState()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return false, err
		}
	}
	if err := pair(l, cfg.Boot); err != nil {
		return false, err
	}
	if string(was) == cfg.Boot {
		return false, nil
	}
	// One that is torn would have the next start clear away what lives.
	next := mark + ".next"
	if err := os.WriteFile(next, []byte(cfg.Boot), 0o600); err != nil {
		return false, err
	}
	return first, os.Rename(next, mark)
}

// pair makes sure that root and state directory are those that belong together, while pods of this boot are in them: a
// daemon with another root would take the pods of a state directory for nobody's, and end them; one with another state
// directory would find nothing of its own pods.
func pair(l *sandbox.Layout, boot string) error {
	for _, x := range []struct{ of, other, dir, name, flag string }{
		{l.State, l.Root, l.PodsState(), "root-path", "--root"}, {l.Root, l.State, "", "state-path", "--state"},
	} {
		mark, now := filepath.Join(x.of, x.name), boot+" "+x.other
		text, err := os.ReadFile(mark)
		if string(text) == now {
			continue
		}
		was, of, _ := strings.Cut(string(text), " ")
		dir := cmp.Or(x.dir, sandbox.Layout{State: of}.PodsState())
		if left, _ := os.ReadDir(dir); err == nil && was == boot && len(left) > 0 {
			return fail.New(errdefs.ErrFailedPrecondition, "%s belongs to %s, and there are %d pods of it: start this daemon "+
				"with %s %s (or remove those pods with such a daemon first), or give this one a root, a state directory and a "+
				"socket of its own", x.of, of, len(left), x.flag, of)
		}
		// A full disk is no reason not to start.
		if os.WriteFile(mark+".next", []byte(now), 0o600) == nil {
			_ = os.Rename(mark+".next", mark)
		}
	}
	return nil
}

// readRecord reads a pod's record. One that is torn and was written in another boot is what a power cut left of a pod
// that was just being changed: then it is the version before, which was on the disk, and what happened in the second
// after that is forgotten.
func readRecord(cfg *Config, id sandbox.ID, first bool) (*sandbox.Record, error) {
	path := cfg.Record(id)
	r, old := &sandbox.Record{}, &sandbox.Record{}
	_, err := sandbox.RecordKind.Read(path, r)
	var corrupt *record.CorruptError
	if errors.As(err, &corrupt) && corrupt.Torn {
		if _, oldErr := sandbox.RecordKind.ReadSynced(path, old); oldErr == nil && (first || old.Boot != cfg.Boot) {
			cfg.Log.Warn("the last change of a pod's record was not on disk yet when the machine went down: "+
				"the record before it is used", "pod", id, "error", err)
			r, err = old, nil
		}
	}
	if err == nil && r.ID != id {
		err = fmt.Errorf("record %s speaks of pod %s", path, r.ID)
	}
	return r, err
}

// load adds one pod to the index. In the first start of a boot, a record that is torn and has no version before it is
// what a power cut left of a pod that was just being made: nothing of it lives, and what it was is unknown.
func load(s *Pods, x *index, id sandbox.ID, first bool) {
	r, err := readRecord(&s.cfg, id, first)
	if errors.Is(err, fs.ErrNotExist) && os.Rename(putAside(&s.cfg, id), s.cfg.Record(id)) == nil {
		r, err = readRecord(&s.cfg, id, first) // cut off while it was taken in: it is as damaged as before
	}
	if errors.Is(err, fs.ErrNotExist) && !there(s.cfg.Run(id)) {
		_ = removeDir(s.cfg.Pod(id)) // cut off before its first record: nothing else can have been made
		return
	}
	var corrupt *record.CorruptError
	if first && errors.As(err, &corrupt) && corrupt.Torn {
		s.cfg.Log.Warn("drop a pod whose record was not on disk yet when the machine went down", "pod", id, "error", err)
		if err = removeDir(s.cfg.Pod(id)); err == nil {
			return
		}
	}
	if err != nil {
		x.damaged[id] = readDamaged(s, id, err)
		s.cfg.Log.Error("a pod's record cannot be used; what is named after the pod is left alone", "pod", id, "error", err)
		return
	}
	// What a daemon that was killed in a write has left is as large as a record, on a disk that may be full. Nobody writes
	// here yet. Where it cannot be removed it does no harm.
	_ = record.Tidy(s.cfg.Pod(id))
	enlist(x, s.makePod(r, false), r)
}

// enlist adds a pod of an earlier daemon to the index.
func enlist(x *index, p *pod, r *sandbox.Record) {
	x.pods[r.ID] = p
	// A pod that is ready has its name, whatever of an earlier one is still stuck on the way out.
	key := nameKey(r.Config.Get().GetMetadata())
	if r.State == sandbox.Ready || r.State != sandbox.Removing && x.names[key] == nil {
		x.names[key] = p
	}
	for _, c := range r.Containers {
		l := newContainer(p, c.ID)
		if c.State == sandbox.Exited || c.State == sandbox.Removing {
			l.once.Do(func() { close(l.exited) })
		}
		l.notified.begun = c.State != sandbox.Creating
		l.notified.ended = c.State == sandbox.Exited || c.State == sandbox.Removing
		p.containers.put(l)
		x.containers[c.ID] = p
	}
}

// newMeter is the meter of all pods.
func newMeter(s *Pods) *meter.Meter {
	return meter.New(meter.Config{
		Layout: s.cfg.Layout, Cgroup: s.bundle.PodCgroup, Background: s.worker.background, Projects: s.cfg.Bundle.Projects,
		Log: s.cfg.Log, Records: records(&s.Catalog),
		Reached: func(r *sandbox.Record, ctr sandbox.ID, reason, what string) {
			s.Feed.publish(Event{Kind: EventLimit, ID: ctr, At: time.Now(), Record: r, Reason: reason, Message: what})
		},
	})
}
