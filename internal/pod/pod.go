package pod

import (
	"path/filepath"
	"sync"
	"sync/atomic"

	"berth/internal/bundle"
	"berth/internal/op"
	"berth/internal/pod/identity"
	"berth/internal/rootfs"
	"berth/internal/sandbox"
)

// The kinds of operation in the lane of a pod.
const (
	opCreate = "creation of the pod"
	opStop   = "stop of the pod"
	opRemove = "removal of the pod"
	opAdopt  = "recovery of the pod"
)

// pod is one pod: its record, the lane of its operations and those of its containers.
type pod struct {
	ledger
	s        *Pods
	cfg      *Config         // of s
	runtime  Runtime         // of cfg
	bundle   *bundle.Builder // of cfg
	notifier *notifier       // of s
	work     *worker         // of s
	id       sandbox.ID
	lane     op.Lane
	// identity is what is known of the pod should its record not be readable one day.
	identity *identity.File
	// ours says that this daemon made the pod: one that an earlier daemon left in the making is undone, never finished.
	ours bool
	// answered is set when the id was given to a caller that still listened.
	answered atomic.Bool
	// initEnded is set when the container that stands for the pod has ended.
	initEnded atomic.Bool
	// adopted is closed when a restarted daemon knows again what runs; operations on containers wait for it.
	adopted chan struct{}

	containers containerSet
	notified   notified

	tries retrier // at an undo that failed
}

func (s *Pods) makePod(r *sandbox.Record, ours bool) *pod {
	p := &pod{
		s: s, cfg: &s.cfg, runtime: s.cfg.Runtime, bundle: &s.cfg.Bundle, notifier: s.notifier, work: &s.worker,
		id:   r.ID,
		lane: op.Lane{Of: op.Owner{Pod: string(r.ID)}}, ours: ours,
		identity: identity.Of(identityPath(&s.cfg, r.ID)),
		adopted:  make(chan struct{}),
	}
	p.ledger.path, p.ledger.dirty, p.ledger.log = s.cfg.Record(r.ID), s.cfg.Dirty, s.cfg.Log.With("pod", r.ID)
	p.ledger.root, p.ledger.feed, p.ledger.announced = s.cfg.Root, &s.Feed, r.State != sandbox.Creating
	p.ledger.put = func(path string, r *sandbox.Record, most int) error {
		return sandbox.RecordKind.WriteWithin(path, r, most)
	}
	p.ledger.turn = make(chan struct{}, 1)
	p.ledger.later = func() {
		s.worker.retry(func() error {
			if p.gone() {
				return nil
			}
			return p.persist()
		})
	}
	p.rec.Store(r)
	// to plugins, before this daemon
	known := r.State == sandbox.Ready || r.State == sandbox.Stopping || r.State == sandbox.Stopped
	p.notified.begun, p.notified.ended = known, r.State == sandbox.Stopped
	return p
}

// identityPath is beside the pod's record.
func identityPath(cfg *Config, id sandbox.ID) string { return filepath.Join(cfg.Pod(id), "identity") }

// identityOf is what a pod's record knows for its identity.
func identityOf(r *sandbox.Record) identity.Identity {
	m := r.Config.Get().GetMetadata()
	i := identity.Identity{
		Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid(), Attempt: m.GetAttempt(), Handler: r.Handler,
		Created: r.CreatedAt,
	}
	for _, c := range r.Containers {
		i.Layers = append(i.Layers, c.Layers...)
	}
	return i
}

// keepLayers names layers in the pod's identity, before anything is mounted of them.
func keepLayers(p *pod, layers []string) error {
	return p.identity.Keep(func() identity.Identity { return identityOf(p.record()) }, layers)
}

// containerSet are the live parts of a pod's containers.
type containerSet struct {
	mu sync.Mutex // guards of; nothing else is locked below it
	of map[sandbox.ID]*container
}

// get returns the live part of a container, nil when it is gone.
func (s *containerSet) get(id sandbox.ID) *container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[id]
}

func (s *containerSet) put(l *container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[sandbox.ID]*container{}
	}
	s.of[l.id] = l
}

func (s *containerSet) drop(id sandbox.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, id)
}

// stuck notes in the record that an undo failed, and tries again later until it succeeds.
func (p *pod) stuck(cause error, again func() error) {
	_ = p.publish("stuck", func(r *sandbox.Record) error {
		r.Stuck = r.Stuck.Again(cause)
		return nil
	})
	if p.tries.ask(p.work, again) {
		p.cfg.Log.Warn("undo of a pod failed; it is tried again in the background", "pod", p.id, "error", cause)
	}
}

// removeDir removes a directory and all below it, without ever crossing into a mount; nil when it is gone.
func removeDir(path string) error {
	return rootfs.Remove(path)
}
