package meter

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"berth/internal/sandbox"
)

// TestUsageOfALargeLayerDelaysNoOther has a container make more files than can be counted while others wait: theirs are
// told, and its own when they have been counted.
func TestUsageOfALargeLayerDelaysNoOther(t *testing.T) {
	t.Parallel()
	const files = int(usageRate * 2.2) // usageShort is 2 s
	large, small := sandbox.NewID(), sandbox.NewID()
	m := open(t, &sandbox.Container{ID: large}, &sandbox.Container{ID: small})
	m.upper(t, small)
	dir := m.upper(t, large)
	for i := range files {
		if err := os.Symlink("x", filepath.Join(dir, strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	if !m.readUsage(t.Context()) {
		t.Fatal("it was cut off")
	}
	if u, ok := m.usage.layer.Load(small); !ok || u.(Usage).Inodes != 1 {
		t.Errorf("of the small layer is known %+v", u)
	}
	if u, ok := m.usage.layer.Load(large); !ok || u.(Usage).Inodes < 1000 || u.(Usage).Inodes > uint64(files) {
		t.Errorf("of the large layer is known %+v, wanted a part of %d", u, files)
	}
	wait(t, "the large layer", func() bool {
		u, ok := m.usage.layer.Load(large)
		return ok && u.(Usage).Inodes == uint64(files)+1
	})
}

// TestLongLayersTakeTurns has more layers take long than are read at once. One that was cut off may take longer the
// next time, and comes after those that have waited.
func TestLongLayersTakeTurns(t *testing.T) {
	var all []layerOf
	for i := range longAtOnce + 1 {
		all = append(all, layerOf{container: sandbox.ID(strconv.Itoa(i))})
	}
	var l longLayers
	ids := func(of []layerOf) (ids []sandbox.ID) {
		for _, one := range of {
			ids = append(ids, one.container)
		}
		return ids
	}
	want := func(got []layerOf, wanted ...layerOf) {
		t.Helper()
		if !slices.Equal(ids(got), ids(wanted)) {
			t.Errorf("%v are to be read, wanted %v", ids(got), ids(wanted))
		}
	}
	want(l.begin(slices.Clone(all)), all[:longAtOnce]...)
	want(l.begin(slices.Clone(all)))
	l.end("0", true)
	l.end("1", true)
	want(l.begin(slices.Clone(all)), all[longAtOnce], all[0]) // the other that was cut off leaves a place
	l.end(all[longAtOnce].container, false)
	want(l.begin(slices.Clone(all)), all[longAtOnce])
	if got := l.within("0"); got != 2*longFirst {
		t.Errorf("one that was cut off may take %v", got)
	}
	for range 20 {
		l.end("0", true)
		want(l.begin(all[:1]), all[0])
	}
	if got := l.within("0"); got != longMost {
		t.Errorf("one that was cut off again and again may take %v", got)
	}
	l.end("0", true)
	l.end(all[longAtOnce].container, false)
	want(l.begin(nil))
	want(l.begin(all[:1]), all[0])
	if got := l.within("0"); got != longFirst || len(l.known) != 1 || l.busy != 1 {
		t.Errorf("one that was not long meanwhile may take %v; %d are known and %d are read", got, len(l.known), l.busy)
	}
}
