package progress

import (
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"berth/test/timeouts"
)

// TestSuspendedListener reports the progress of a layer to two callers, of which one does not return from its first
// event, as that of a command that was suspended: neither the fetch nor the other caller waits for it.
func TestSuspendedListener(t *testing.T) {
	var l Listeners
	stands, goOn, heard := make(chan struct{}), make(chan struct{}), make(chan Event, 10)
	suspended := NewReporter(func(Event) {
		select {
		case <-stands:
		default:
			close(stands)
		}
		<-goOn
	})
	other := NewReporter(func(p Event) { heard <- p })
	defer l.Add(suspended)()
	l.Report(Event{Layer: "sha256:a", Phase: Waiting})
	<-stands
	defer l.Add(other)()
	fetched := make(chan struct{})
	go func() {
		l.Report(Event{Layer: "sha256:a", Phase: Downloading})
		l.Report(Event{Layer: "sha256:a", Phase: Done})
		close(fetched)
	}()
	select {
	case <-fetched:
	case <-time.After(timeouts.For(10 * time.Second)):
		t.Error("the fetch of a layer waits for a caller that stands still")
	}
	for _, want := range []string{Waiting, Downloading, Done} {
		select {
		case p := <-heard:
			if p.Phase != want {
				t.Errorf("the other caller hears %s, not %s", p.Phase, want)
			}
		case <-time.After(timeouts.For(10 * time.Second)):
			t.Fatalf("the other caller never hears %s", want)
		}
	}
	close(goOn)
	suspended.Close()
	other.Close()
}

// TestReporterKeepsTheLatest wants every phase in order, of each phase the last event, and nothing after close.
func TestReporterKeepsTheLatest(t *testing.T) {
	var got []Event
	begun, goOn := make(chan struct{}), make(chan struct{})
	r := NewReporter(func(p Event) {
		if len(got) == 0 {
			close(begun)
			<-goOn
		}
		got = append(got, p)
	})
	a, b := digest.Digest("sha256:a"), digest.Digest("sha256:b")
	r.Report(Event{Phase: Resolving})
	<-begun
	for n := range int64(10_000) {
		r.Report(Event{Layer: a, Done: n, Phase: Downloading})
	}
	r.Report(Event{Layer: b, Phase: Exists})
	r.Report(Event{Layer: a, Phase: Done})
	close(goOn)
	r.Close()
	r.Report(Event{Layer: b, Phase: Finalizing})
	want := []Event{
		{Phase: Resolving}, {Layer: a, Done: 9999, Phase: Downloading}, {Layer: b, Phase: Exists},
		{Layer: a, Phase: Done},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	silent := NewReporter(nil)
	silent.Report(Event{})
	silent.Close()
}
