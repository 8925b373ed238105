package image

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// busy says whether all turns are taken.
func (t *turns) busy() bool { return len(t.places) == cap(t.places) }

// TestTurns has a turn end with its layer, with its time, and when its blob is waited for.
func TestTurns(t *testing.T) {
	t.Parallel()
	long := newTurns(1)
	long.length, long.host = time.Hour, time.Hour
	_, end := long.begin(t.Context(), nil)
	next := make(chan func())
	go func() {
		_, end := long.begin(t.Context(), nil)
		next <- end
	}()
	select {
	case <-next:
		t.Error("two have the one turn")
	case <-time.After(20 * time.Millisecond):
	}
	end()
	end = <-next
	if !long.busy() {
		t.Error("the turn is nobody's")
	}
	end()
	end() // it may be ended again

	short := newTurns(1)
	short.length, short.host = time.Millisecond, time.Hour
	for range 3 { // each but the first waits for a millisecond
		_, end := short.begin(t.Context(), nil)
		defer end()
	}

	slow := newTurns(1)
	slow.length, slow.host = time.Hour, time.Millisecond
	r, w := io.Pipe()
	blob, end := slow.begin(t.Context(), r)
	defer end()
	go func() { _, _ = blob.Read(make([]byte, 1)) }()
	_, end = slow.begin(t.Context(), nil)
	end()
	w.Close()
	if slow.busy() {
		t.Error("a turn was not given back")
	}
}

// TestUnpackersTakeTurns has no more unpackers begin at once than there are turns.
func TestUnpackersTakeTurns(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	var layers []v1.Layer
	for i := range 8 {
		layers = append(layers, gz(t, file(fmt.Sprint(i), strings.Repeat("x", i))))
	}
	push(t, host+"/app:v1", imageOf(t, layers...))
	var s *Store
	var most atomic.Int32
	s = open(t, t.TempDir(), withCrew(crewFunc(func(args, env []string, files []*os.File) (*os.Process, error) {
		time.Sleep(50 * time.Millisecond) // all that do not wait for a turn are there
		most.Store(max(most.Load(), s.pipeline.unpackers.running.Load()))
		return testCrew().Start(args, env, files)
	})))
	s.pipeline.unpackers.tiny.length, s.pipeline.unpackers.tiny.host = time.Hour, time.Hour
	pull(t, s, host+"/app:v1")
	if n := most.Load(); n != 1 {
		t.Errorf("%d at once", n)
	}
}

// TestTurnsOfSmallLayers has one more small layer begin at once than there are processors, one tiny layer, and none
// wait for layers of another size.
func TestTurnsOfSmallLayers(t *testing.T) {
	t.Parallel()
	n := runtime.GOMAXPROCS(0)
	u, err := newUnpackers(testCrew(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.close)
	sizes := map[int64]int{1: 1, tinySize: 1, tinySize + 1: n + 1, shareableSize: n + 1, shareableSize + 1: n}
	for size, want := range sizes {
		turns := u.turns(layerRequest{desc: ocispec.Descriptor{Size: size}})
		turns.length = time.Hour
		var ends []func()
		for range want {
			_, end := turns.begin(t.Context(), nil)
			ends = append(ends, end)
		}
		if !turns.busy() {
			t.Errorf("%d layers of %d bytes have begun, and another may", want, size)
		}
		for _, end := range ends {
			end()
		}
	}
}
