package pod

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/fault"
	"berth/internal/op"
	"berth/internal/rootfs"
	"berth/internal/runtime"
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
	s    *Pods
	id   ID
	lane op.Lane
	rec  atomic.Pointer[Record]
	// ours says that this daemon made the pod: one that an earlier daemon left in the making is undone, never finished.
	ours bool
	// answered is set when the id was given to a caller that still listened.
	answered atomic.Bool
	// adopted is closed when a restarted daemon knows again what runs; operations on containers wait for it.
	adopted chan struct{}

	mu         sync.Mutex // guards the writing of rec, and what follows
	containers map[ID]*container
	retrying   bool
	unwritten  bool // a full disk kept the record from being written
}

// container is what a daemon knows of a container beside its record.
type container struct {
	lane   op.Lane
	exited chan struct{} // closed when the record says exited
	once   sync.Once
	hurry  hurry
	ours   bool          // made by this daemon; see pod.ours
	early  *runtime.Exit // an exit that came before the record said created; guarded by the pod's mu
}

func newContainer() *container { return &container{exited: make(chan struct{}), hurry: newHurry()} }

func (c *container) markExited() { c.once.Do(func() { close(c.exited) }) }

// update changes the record: fn changes a copy, which is written and then published. why names the fault points around
// the write.
func (p *pod) update(why string, fn func(*Record) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.rec.Load().clone()
	if err := fn(next); err != nil {
		return err
	}
	if err := p.write(why, next); err != nil {
		return err
	}
	p.rec.Store(next)
	return nil
}

// settle is update for what has already happened or must go on whatever the disk says: an exit, a step of a removal. A
// full disk does not stop it: the record is published, and the next write that succeeds carries it.
func (p *pod) settle(why string, fn func(*Record) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.rec.Load().clone()
	if err := fn(next); err != nil {
		return err
	}
	if err := p.write(why, next); err != nil {
		if !diskFull(err) {
			return err
		}
		p.unwritten = true
		p.s.cfg.Log.Warn("the disk is full: a pod's record is kept in memory until it can be written", "pod", p.id, "change", why, "error", err)
	}
	p.rec.Store(next)
	return nil
}

func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func (p *pod) write(why string, r *Record) error {
	if fault.Enabled {
		if err := fault.At("record." + why + ".before"); err != nil {
			return err
		}
	}
	path := p.s.cfg.record(p.id)
	if err := recordKind.Write(path, r); err != nil {
		return fmt.Errorf("pod %s: %w", p.id, err)
	}
	p.unwritten = false
	p.s.cfg.Dirty(path)
	if fault.Enabled {
		return fault.At("record." + why + ".after")
	}
	return nil
}

// container returns the live part of a container, nil when it is gone.
func (p *pod) container(id ID) *container {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.containers[id]
}

// forget removes the pod from the index: its record is gone.
func (p *pod) forget() {
	p.s.reindex(func(x *index) {
		delete(x.pods, p.id)
		for name, q := range x.names {
			if q == p {
				delete(x.names, name)
			}
		}
		for ctr, q := range x.containers {
			if q == p {
				delete(x.containers, ctr)
			}
		}
	})
}

// release lets a new pod have this one's name.
func (p *pod) release() {
	p.s.reindex(func(x *index) {
		key := nameKey(p.rec.Load().Config.Get().GetMetadata())
		if x.names[key] == p {
			delete(x.names, key)
		}
	})
}

// stuck notes in the record that an undo failed, and tries again later until it succeeds.
func (p *pod) stuck(cause error, again func() error) {
	now := time.Now()
	_ = p.settle("stuck", func(r *Record) error {
		f := Failure{Since: now}
		if r.Stuck != nil {
			f = *r.Stuck
		}
		f.Error, f.Tries = cause.Error(), f.Tries+1
		r.Stuck = &f
		return nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retrying {
		return
	}
	p.retrying = true
	p.s.cfg.Log.Warn("undo of a pod failed; it is tried again in the background", "pod", p.id, "error", cause)
	p.s.retry(again, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.retrying = false
	})
}

// goneError says that the object ended while the caller waited to work on it.
func goneError(what string, id ID, state State) error {
	return fmt.Errorf("%s %s is %s: %w", what, id, state, errdefs.ErrFailedPrecondition)
}

// removeDir removes a directory and all below it, without ever crossing into a mount; nil when it is gone.
func removeDir(path string) error {
	return rootfs.Remove(path)
}
