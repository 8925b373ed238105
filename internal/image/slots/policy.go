package slots

import (
	"cmp"
	"math"
	"time"
)

const (
	// Floor is how many bytes a second a transfer may receive without a slot.
	Floor = 256 << 10
	// burst is how much of that it may save up.
	burst = Floor / 4
	// workCost is how many seconds of the Floor a second of work without a slot costs.
	workCost = 8

	// presumed is how many bytes a second a new transfer is expected to get with a slot.
	presumed = 2 << 20
	// muchMore is how many times as much makes a transfer worth more than another.
	muchMore = 4
	// mostlyIdle is the share of its time that a transfer waits for its host when that is what holds it up.
	mostlyIdle = 0.5
	// blocked is how long a read takes from which a transfer that belongs to another host than who waits loses its slot:
	// it may have sent much right before.
	blocked = 100 * time.Millisecond
	// turn is how long a transfer may keep its slot when that is the only one of its host and another host has none.
	turn = 2 * time.Second
	// remembered is for how long it counts what a transfer got with its last slot. After that it gets another chance.
	remembered = 5 * time.Second
	// heldLong is how old a starving transfer must be before it may have to make room for one that has not begun.
	heldLong = 10 * time.Second
)

var unknownRate = math.Inf(1)

// before says which of two that wait comes first: one that is not known to be slow, one whose host has fewer slots, one
// that has waited longer for one.
func before(a, b *Transfer, now time.Time) int {
	slow := func(t *Transfer) int {
		if t.isSlow(now) {
			return 1
		}
		return 0
	}
	x, y := a.host, b.host
	return cmp.Or(cmp.Compare(slow(a), slow(b)), cmp.Compare(x.slots, y.slots), x.served.Compare(y.served))
}

// mayTake reports whether w, which waits, may take the slot of v.
func mayTake(w, v *Transfer, now time.Time) bool {
	if v.isStarving(now) {
		return true
	}
	if w.host == v.host {
		return false
	}
	if v.isBlocked(now) {
		return true
	}
	known, mine := now.Before(w.pace.until), float64(presumed)
	if known {
		mine = w.pace.rate
	}
	rate, idle := v.state(now)
	held := now.Sub(v.since)
	switch {
	case idle >= mostlyIdle && muchMore*rate <= mine:
		return true
	case held < window || known && muchMore*mine < rate:
		return false
	case v.host.slots >= w.host.slots+2:
		return true
	}
	return w.host.slots == 0 && held >= turn
}

// slowest chooses the one with the lowest rate among those that may be chosen; nil when there is none.
func slowest(of map[*Transfer]struct{}, now time.Time, may func(*Transfer) bool) *Transfer {
	var found *Transfer
	lowest := 0.0
	for t := range of {
		if rate, _ := t.meter.read(now, t.reading); may(t) && (found == nil || rate < lowest) {
			found, lowest = t, rate
		}
	}
	return found
}
