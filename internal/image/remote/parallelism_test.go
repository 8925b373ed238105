package remote

import (
	"fmt"
	"testing"
	"time"
)

// pulling is a blob whose reader starves all the time, on a link of so many bytes a second.
type pulling struct {
	probe *parallelismProbe
	blob  *Blob
	now   sample
	other float64 // bytes a second that other hosts send when this one sends none
	link  float64 // bytes a second of all hosts; 0 is no limit
}

// during lets time pass at a rate that depends on whether the blob fetches ahead, and returns the last answer.
func (p *pulling) during(d time.Duration, alone, ahead float64) (allowed bool) {
	for end := p.now.at.Add(d); p.now.at.Before(end); {
		rate := alone
		if allowed {
			rate = ahead
		}
		p.now.at = p.now.at.Add(gaugeWindow)
		p.now.bytes += int64(rate * gaugeWindow.Seconds())
		all := rate + p.other
		if p.link > 0 {
			all = min(all, p.link)
		}
		p.now.all += int64(all * gaugeWindow.Seconds())
		allowed = p.probe.allows(p.blob, p.now, time.Second)
		p.blob.ahead.wanted = allowed
	}
	return allowed
}

func newPulling() *pulling {
	return &pulling{probe: &parallelismProbe{}, blob: &Blob{}, now: sample{at: time.Unix(1000, 0)}}
}

func TestProbeOnAFullLink(t *testing.T) {
	p := newPulling()
	if p.during(400*time.Millisecond, 10e6, 10e6) {
		t.Error("a probe began before anything was known")
	}
	if !p.during(time.Second, 10e6, 10e6) {
		t.Error("no probe began")
	}
	if p.during(2*time.Second, 10e6, 11e6) {
		t.Error("connections that bring a tenth more are kept")
	}
	if p.during(firstPause-3*time.Second, 10e6, 40e6) {
		t.Error("the next probe came too early")
	}
	if !p.during(10*time.Second, 10e6, 40e6) {
		t.Error("once the link is better, more connections are not used")
	}
}

func TestProbeOnSlowConnections(t *testing.T) {
	p := newPulling()
	if !p.during(5*time.Second, 10e6, 30e6) {
		t.Fatal("connections that bring three times as much are not used")
	}
	other := &pulling{probe: p.probe, blob: &Blob{}, now: p.now}
	if !other.during(time.Second, 30e6, 30e6) {
		t.Error("what one blob found does not hold for another")
	}
	other.now.at = other.now.at.Add(helpsFor)
	if other.during(gaugeWindow, 30e6, 30e6) {
		t.Error("what was found holds for ever")
	}
}

// TestProbeHoldsWhileUsed goes on for long: a new probe beside connections that help already would find no gain in
// them.
func TestProbeHoldsWhileUsed(t *testing.T) {
	p := newPulling()
	if !p.during(5*time.Second, 10e6, 30e6) {
		t.Fatal("connections that bring three times as much are not used")
	}
	began := p.now
	p.during(5*helpsFor, 10e6, 30e6)
	if rate := began.rate(p.now).own; rate < 29e6 {
		t.Errorf("%.0f bytes a second of the 30e6 that are to be had", rate)
	}
}

// TestProbeBesideOtherHosts has a host be faster with more connections: because it had more to give, or because it
// takes what others send over one full link.
func TestProbeBesideOtherHosts(t *testing.T) {
	p := newPulling()
	p.other = 40e6
	if !p.during(5*time.Second, 10e6, 30e6) {
		t.Error("connections that bring three times as much are not used beside another host")
	}
	p = newPulling()
	p.other, p.link = 40e6, 50e6
	if p.during(5*time.Second, 10e6, 30e6) {
		t.Error("connections that only take what another host sends are kept")
	}
}

// TestProbesAreOfHosts has what helps with one host say nothing of another, and remembers no host for ever.
func TestProbesAreOfHosts(t *testing.T) {
	var all parallelismProbes
	a, b := all.enter("https://a"), all.enter("https://b")
	if a == b || all.enter("https://a") != a {
		t.Error("a host has not one probe of its own")
	}
	for i := range 2 * mostProbes {
		all.leave(all.enter(fmt.Sprint("https://", i)), nil)
	}
	if len(all.byHost) > mostProbes || all.enter("https://a") != a || all.enter("https://b") != b {
		t.Errorf("%d hosts are remembered, or one is not that is in use", len(all.byHost))
	}
}

func TestProbeIsLeft(t *testing.T) {
	p := newPulling()
	if !p.during(time.Second, 10e6, 10e6) {
		t.Fatal("no probe began")
	}
	other := &pulling{probe: p.probe, blob: &Blob{}, now: p.now}
	if other.during(time.Second/2, 10e6, 10e6) {
		t.Error("two try at once")
	}
	p.probe.leave(p.blob)
	if !other.during(time.Second/2, 10e6, 10e6) {
		t.Error("nobody may try after one that left")
	}
}

// TestProbeAfterAGap begins a pull long after the last: the time between counts for nothing.
func TestProbeAfterAGap(t *testing.T) {
	p := newPulling()
	p.during(300*time.Millisecond, 10e6, 10e6)
	p.now.at = p.now.at.Add(time.Hour)
	if p.during(300*time.Millisecond, 10e6, 10e6) {
		t.Error("a probe began before anything was known")
	}
	p.during(3*time.Second, 10e6, 10e6)
	if p.probe.verdict != useless {
		t.Errorf("verdict %d", p.probe.verdict)
	}
}

func TestBuffers(t *testing.T) {
	p := &buffers{size: 4096, left: 3 * 4096}
	var all [][]byte
	for range 3 {
		buf := p.get(time.Time{})
		if len(buf) != 4096 {
			t.Fatalf("a buffer of %d bytes", len(buf))
		}
		buf[0], buf[4095] = 1, 1
		all = append(all, buf)
	}
	if p.get(time.Time{}) != nil {
		t.Error("more than the budget")
	}
	p.put(all[0])
	if buf := p.get(time.Time{}); buf == nil {
		t.Error("what came back is not handed out again")
	}
	for range 3 {
		p.put(all[0])
		all = append(all[1:], all[0])
	}
	if p.left != 3*4096 || p.free != nil {
		t.Errorf("%d bytes are left", p.left)
	}
}
