package slots

import "time"

// window is the time over which a meter judges. A transfer that was just given a slot is not judged before it is over.
const window = 500 * time.Millisecond

// meter measures the rate of a transfer and how much of the time it waits for its host, over the last window.
type meter struct {
	start  time.Time // of what follows
	bytes  int64
	waited time.Duration

	rate, idle float64 // of the window before
}

func (m *meter) reset(now time.Time) { *m = meter{start: now} }

// add notes a read that is over.
func (m *meter) add(now time.Time, n int, waited time.Duration) {
	m.bytes += int64(n)
	m.waited += waited
	if span := now.Sub(m.start); span >= window {
		m.rate, m.idle = float64(m.bytes)/span.Seconds(), m.waited.Seconds()/span.Seconds()
		m.start, m.bytes, m.waited = now, 0, 0
	}
}

// read returns bytes a second, and the share of the time spent waiting, as of now. A read is under way since then,
// unless that is zero.
func (m *meter) read(now, since time.Time) (rate, idle float64) {
	waited := m.waited
	if !since.IsZero() {
		waited += now.Sub(later(since, m.start))
	}
	span := max(now.Sub(m.start), time.Microsecond)
	if span >= window {
		return float64(m.bytes) / span.Seconds(), waited.Seconds() / span.Seconds()
	}
	before := (window - span).Seconds()
	return (m.rate*before + float64(m.bytes)) / window.Seconds(), (m.idle*before + waited.Seconds()) / window.Seconds()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
