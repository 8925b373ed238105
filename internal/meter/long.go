package meter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"berth/internal/sandbox"
)

// Layers that take long are read in the background, so many at a time, which share the pace of one. The reading of one
// is cut off after longFirst. What it has counted by then is told, and the next one may take twice as long, up to
// longMost: a container that makes millions of names, to hide behind them what it wrote, is counted a little later. One
// place is for layers that were not cut off yet.
const (
	longAtOnce = 2
	longRate   = usageRate / longAtOnce
	longFirst  = 5 * time.Minute
	longMost   = 24 * time.Hour
)

// longLayers are the layers that take long. The zero value has none.
type longLayers struct {
	mu     sync.Mutex // guards what follows
	known  map[sandbox.ID]*longLayer
	busy   int // that are being read
	longer int // of these, that may take longer than longFirst
}

// longLayer is a layer whose last short reading was cut off.
type longLayer struct {
	busy   bool
	ended  time.Time     // when its last long reading ended
	within time.Duration // what this one or the next may take
}

func (l *longLayer) longer() bool { return l.within > longFirst }

// begin returns those of the layers that are to be read now, those whose last reading is the longest ago; end must be
// called for each. It forgets what is not among them.
func (l *longLayers) begin(layers []layerOf) (now []layerOf) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.known
	l.known = map[sandbox.ID]*longLayer{}
	for id, one := range old {
		if one.busy {
			l.known[id] = one
		}
	}
	for _, layer := range layers {
		one := old[layer.container]
		if one == nil {
			one = &longLayer{within: longFirst}
		}
		l.known[layer.container] = one
	}
	layers = slices.DeleteFunc(layers, func(layer layerOf) bool { return l.known[layer.container].busy })
	slices.SortStableFunc(layers, func(a, b layerOf) int {
		return l.known[a.container].ended.Compare(l.known[b.container].ended)
	})
	for _, layer := range layers {
		one := l.known[layer.container]
		if l.busy == longAtOnce || one.longer() && l.longer == longAtOnce-1 {
			continue
		}
		l.busy, one.busy = l.busy+1, true
		if one.longer() {
			l.longer++
		}
		now = append(now, layer)
	}
	return now
}

// within returns how long the reading of a layer that has begun may take.
func (l *longLayers) within(id sandbox.ID) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known[id].within
}

// end notes that the reading of a layer has ended, and whether it was cut off.
func (l *longLayers) end(id sandbox.ID, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.known[id]
	one.busy, one.ended = false, time.Now()
	l.busy--
	if one.longer() {
		l.longer--
	}
	if cut {
		one.within = min(2*one.within, longMost)
	}
}

// readLong reads a layer that takes long.
func readLong(ctx context.Context, m *Meter, l layerOf) {
	_, err := m.readLayer(ctx, l, m.usage.long.within(l.container), longRate)
	m.usage.long.end(l.container, errors.Is(err, context.DeadlineExceeded))
}
