package image

import (
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"berth/test/patience"
)

// TestSuspendedListener reports the progress of a layer to two callers, of which one does not return from its first
// event, as that of a command that was suspended: neither the fetch nor the other caller waits for it.
func TestSuspendedListener(t *testing.T) {
	var l listeners
	stands, goOn, heard := make(chan struct{}), make(chan struct{}), make(chan Progress, 10)
	suspended := newReporter(func(Progress) {
		select {
		case <-stands:
		default:
			close(stands)
		}
		<-goOn
	})
	other := newReporter(func(p Progress) { heard <- p })
	defer l.add(suspended)()
	l.report(Progress{Layer: "sha256:a", Phase: PhaseWaiting})
	<-stands
	defer l.add(other)()
	fetched := make(chan struct{})
	go func() {
		l.report(Progress{Layer: "sha256:a", Phase: PhaseDownloading})
		l.report(Progress{Layer: "sha256:a", Phase: PhaseDone})
		close(fetched)
	}()
	select {
	case <-fetched:
	case <-time.After(patience.For(10 * time.Second)):
		t.Error("the fetch of a layer waits for a caller that stands still")
	}
	for _, want := range []string{PhaseWaiting, PhaseDownloading, PhaseDone} {
		select {
		case p := <-heard:
			if p.Phase != want {
				t.Errorf("the other caller hears %s, not %s", p.Phase, want)
			}
		case <-time.After(patience.For(10 * time.Second)):
			t.Fatalf("the other caller never hears %s", want)
		}
	}
	close(goOn)
	suspended.close()
	other.close()
}

// TestReporterKeepsTheLatest wants every phase in order, of each phase the last event, and nothing after close.
func TestReporterKeepsTheLatest(t *testing.T) {
	var got []Progress
	begun, goOn := make(chan struct{}), make(chan struct{})
	r := newReporter(func(p Progress) {
		if len(got) == 0 {
			close(begun)
			<-goOn
		}
		got = append(got, p)
	})
	a, b := digest.Digest("sha256:a"), digest.Digest("sha256:b")
	r.report(Progress{Phase: PhaseResolving})
	<-begun
	for n := range int64(10_000) {
		r.report(Progress{Layer: a, Done: n, Phase: PhaseDownloading})
	}
	r.report(Progress{Layer: b, Phase: PhaseExists})
	r.report(Progress{Layer: a, Phase: PhaseDone})
	close(goOn)
	r.close()
	r.report(Progress{Layer: b, Phase: PhaseSettling})
	want := []Progress{
		{Phase: PhaseResolving}, {Layer: a, Done: 9999, Phase: PhaseDownloading}, {Layer: b, Phase: PhaseExists},
		{Layer: a, Phase: PhaseDone},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	silent := newReporter(nil)
	silent.report(Progress{})
	silent.close()
}
