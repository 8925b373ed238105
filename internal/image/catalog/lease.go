package catalog

import "sync"

// Leases knows which layers may be used, and keeps layers in use from being swept. It has a lock of its own, which is
// held for a few look-ups only, so that the start of a container does not wait until the catalog has written a record.
//
// Epochs order uses and sweeps. A layer that was held at any time in the epoch of a sweep stays, because its holder may
// have become a container after the sweep asked which layers containers use.
type Leases struct {
	mu     sync.Mutex // guards what follows; taken after the catalog's, and before none
	epoch  uint64     // of sweeps and repairs
	layers map[string]*lease
}

type lease struct {
	holds int
	epoch uint64 // the one in which the layer was last held
}

// admit lets a layer be held from now on.
func (l *Leases) admit(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.layers == nil {
		l.layers = map[string]*lease{}
	}
	if l.layers[id] == nil {
		l.layers[id] = &lease{}
	}
}

// Hold keeps layers from being swept until release is called, once or more. Those that may not be held are passed
// over; all says that there was none.
func (l *Leases) Hold(ids ...string) (release func(), all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make([]*lease, 0, len(ids))
	for _, id := range ids {
		if one := l.layers[id]; one != nil {
			one.holds++
			one.epoch = l.epoch
			held = append(held, one)
		}
	}
	var once sync.Once
	return func() { once.Do(func() { l.release(held) }) }, len(held) == len(ids)
}

// HoldFirst holds the first of the ids that is there, "" where none is.
func (l *Leases) HoldFirst(ids ...string) (string, func()) {
	for _, id := range ids {
		if release, all := l.Hold(id); all {
			return id, release
		}
	}
	return "", nil
}

func (l *Leases) release(held []*lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range held {
		one.holds--
		one.epoch = l.epoch
	}
}

// begin begins an epoch: a layer that is held from now on can be told by it.
func (l *Leases) begin() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch++
	return l.epoch
}

// expel ends the use of a layer: it can no longer be held. It fails for a layer that is held, or was held in the epoch.
func (l *Leases) expel(id string, epoch uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.idleLocked(id, epoch) {
		return false
	}
	delete(l.layers, id)
	return true
}

// idle says that a layer is not held and was not held in the epoch.
func (l *Leases) idle(id string, epoch uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.idleLocked(id, epoch)
}

func (l *Leases) idleLocked(id string, epoch uint64) bool {
	one := l.layers[id]
	return one == nil || one.holds == 0 && one.epoch < epoch
}
