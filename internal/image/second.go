package image

import (
	"context"
	"fmt"
	"time"
)

const (
	// expected is how many bytes a second a fetch of one's own is thought to bring.
	expected = 8 << 20
	// longestLook is the most time between two attempts to be faster than another's fetch.
	longestLook = time.Minute
)

// secondFetch is a caller that waits for a flight which another one began.
type secondFetch struct {
	pipeline *pipeline
	layer    want
	src      source
	first    *holding // in the flight that it joined
	look     time.Duration
	chance   time.Duration
}

// firstToLand waits until the flight that a caller has joined lands. When that fetches from elsewhere than src, and is
// going to take longer than it should, the caller begins a fetch of its own beside it, which goes on when it turns out
// to be faster: nobody can hold up a layer by saying that it is being fetched. It returns the caller's share in the
// flight that landed first. own says that it is the caller's: then its failure is, too.
func firstToLand(
	ctx context.Context, s *pipeline, w want, src source, joined *holding,
) (h *holding, own bool) {
	p := s.pacing.orDefault()
	f := &secondFetch{pipeline: s, layer: w, src: src, first: joined, look: p.look, chance: p.chance}
	for f.becomesSlow(ctx) {
		second := f.begin()
		switch f.race(ctx, second) {
		case second:
			joined.release()
			return second, true
		case joined:
			second.release()
			return joined, false
		}
		second.release() // it is no faster
		f.look = min(4*f.look, longestLook)
	}
	return joined, false
}

// becomesSlow waits until the flight is slow, and says false when it has landed or ctx has ended before.
func (f *secondFetch) becomesSlow(ctx context.Context) bool {
	tick := time.NewTicker(f.look)
	defer tick.Stop()
	var seen *pace
	for {
		select {
		case <-f.first.flight.done:
			return false
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		d := f.first.flight.listen.download.Load()
		switch {
		case d == nil || d.place == place(f.src):
		case seen == nil:
			seen = newPace(d.transfer)
		case f.takesLong(d, seen.rate()):
			return true
		}
	}
}

// takesLong says that a download needs more time for what it has left than the caller for all. What has arrived whole
// is only unpacked.
func (f *secondFetch) takesLong(d *download, rate float64) bool {
	left := d.size - d.transfer.Received()
	mine := float64(f.layer.desc.Size)/expected + f.look.Seconds()
	return left > 0 && float64(left) > rate*mine
}

// begin joins the fetch from the caller's own source, which others from there may have begun.
func (f *secondFetch) begin() *holding {
	s, w := f.pipeline, f.layer
	key := fmt.Sprintf("%s from %s", flightKey(s, w, f.src), hostOf(f.src))
	if _, ok := f.src.(registry); !ok {
		key = fmt.Sprintf("%s from %p", flightKey(s, w, f.src), f.src)
	}
	fl, _, leave := s.layers.join(key, nil, fetchFrom(s, w, f.src), dropRaw)
	return &holding{flight: fl, release: leave}
}

// race waits until one of the two flights has landed, and returns that one; when the first fails, the second is left.
// It returns nil when the second fails, or is not twice as fast as the first when it has had its chance.
func (f *secondFetch) race(ctx context.Context, second *holding) *holding {
	over := time.NewTimer(f.chance)
	defer over.Stop()
	had := progressOf(f.first.flight)
	for {
		select {
		case <-f.first.flight.done:
			if f.first.flight.err != nil {
				f.pipeline.layers.forget(f.first.flight)
				return second
			}
			return f.first
		case <-second.flight.done:
			if second.flight.err != nil {
				f.pipeline.layers.forget(second.flight)
				return nil
			}
			return second
		case <-ctx.Done():
			return f.first
		case <-over.C:
			mine := progressOf(second.flight)
			if mine > 0 && mine < 2*(progressOf(f.first.flight)-had) {
				return nil
			}
		}
	}
}

// progressOf is which part of its blob a flight has.
func progressOf(fl *flight[*rawLayer]) float64 {
	d := fl.listen.download.Load()
	if d == nil {
		return 0
	}
	return float64(d.transfer.Received()) / float64(max(d.size, 1))
}
