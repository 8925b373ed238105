package image

import (
	"time"

	"berth/internal/image/slots"
)

// pacing says over how much time fetches are judged; tests have less of it.
type pacing struct {
	look   time.Duration // at how fast one is
	chance time.Duration // of a second one, to be faster than the first
}

func (p pacing) orDefault() pacing {
	if p == (pacing{}) {
		return pacing{look: 2 * time.Second, chance: 3 * time.Second}
	}
	return p
}

// pace tells how fast a transfer is, look by look.
type pace struct {
	transfer *slots.Transfer
	at       time.Time
	bytes    int64
}

func newPace(t *slots.Transfer) *pace { return &pace{t, time.Now(), t.Received()} }

// rate returns bytes a second since the last look.
func (p *pace) rate() float64 {
	now, bytes := time.Now(), p.transfer.Received()
	rate := float64(bytes-p.bytes) / now.Sub(p.at).Seconds()
	p.at, p.bytes = now, bytes
	return rate
}
