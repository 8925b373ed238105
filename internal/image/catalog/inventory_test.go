package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"berth/internal/image/reference"
)

// TestInventory changes an inventory at random, and compares each snapshot and each look-up with what one finds by
// looking at everything.
func TestInventory(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	pinned := []string{"r.example/app1:*"}
	v := newInventory(pinned, func(id string) string { return "/records/" + id })
	before := v.snapshot.Load()
	for range 3000 {
		disturb(rnd, v)
		v.publish()
		now := v.snapshot.Load()
		if problem := disagreement(v, now, &pins{Configured: parsePatterns(pinned)}); problem != "" {
			t.Fatal(problem)
		}
		before = now
	}
	kept := fmt.Sprint(before.List(), before.bytes, usesIn(before))
	for range 100 {
		disturb(rnd, v)
		v.publish()
	}
	if now := fmt.Sprint(before.List(), before.bytes, usesIn(before)); now != kept {
		t.Errorf("a snapshot has changed after it was published:\n%s\n%s", kept, now)
	}
}

// disturb makes one change of the sort that pulls, removals and sweeps make.
func disturb(rnd *rand.Rand, v *inventory) {
	id := func() string { return digest.FromString(fmt.Sprint(rnd.IntN(12))).String() }
	layer := func() string { return fmt.Sprintf("d%d", rnd.IntN(20)) }
	diff := func() digest.Digest { return digest.FromString(strconv.Itoa(rnd.IntN(9))) }
	switch rnd.IntN(6) {
	case 0:
		v.dropImage(id())
	case 1:
		v.dropLayer(layer())
	case 2:
		v.putLayer(&layerState{LayerRecord: LayerRecord{ID: layer(), DiffID: diff(),
			Bytes: rnd.Uint64N(100), Inodes: rnd.Uint64N(9), Durable: rnd.IntN(2) == 0, Doubtful: rnd.IntN(5) == 0}})
	default:
		rec := &ImageRecord{ID: id(), Durable: rnd.IntN(2) == 0, PulledAt: time.Unix(rnd.Int64N(5), 0)}
		for range rnd.IntN(4) {
			rec.Layers = append(rec.Layers, LayerRef{ID: layer(), DiffID: diff()})
			rec.Tags = reference.Union(rec.Tags, []string{fmt.Sprintf("r.example/app%d:v%d", rnd.IntN(3), rnd.IntN(3))})
			rec.Digests = reference.Append(rec.Digests, []string{"r.example/app@" + id()})
		}
		if rnd.IntN(4) == 0 {
			rec.Ceded = []string{"r.example/ceded:v1"}
		}
		v.putImage(rec)
	}
}

// disagreement says where a snapshot or a look-up differs from what the maps hold.
func disagreement(v *inventory, now *Index, pinned *pins) string {
	ids := slices.Sorted(maps.Keys(v.images))
	owners, named, unsynced := map[string][]string{}, map[string]*ImageRecord{}, 0
	for _, id := range ids {
		rec := v.images[id]
		got, ok := now.image(id)
		if want := imageFrom(rec, v.pathOf(id), pinned); !ok || fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Sprintf("image %v, wanted %v", got, want)
		}
		for layer := range memberSet(rec.LayerIDs()) {
			owners[layer] = append(owners[layer], id)
		}
		for _, name := range rec.names() {
			if o := named[name]; o == nil || cmp.Or(rec.PulledAt.Compare(o.PulledAt), strings.Compare(id, o.ID)) > 0 {
				named[name] = rec
			}
		}
		inDoubt := func(l LayerRef) bool { return v.present[l.ID] != nil && v.present[l.ID].Doubtful }
		if !rec.Durable && !slices.ContainsFunc(rec.Layers, inDoubt) {
			unsynced++
		}
		if _, cedes := v.ceding[id]; cedes != (len(rec.Ceded) > 0) {
			return fmt.Sprintf("%s cedes %v, and the look-up has it: %v", id, rec.Ceded, cedes)
		}
	}
	for name, rec := range named {
		if got, _ := now.names.get(name); got != rec.ID {
			return fmt.Sprintf("%s leads to %q, wanted %s", name, got, rec.ID)
		}
	}
	var bytes, inodes uint64
	var loose []string
	for id, l := range v.present {
		bytes, inodes = bytes+l.Bytes, inodes+l.Inodes
		if got, _ := now.layers.get(id); !reflect.DeepEqual(got, l.LayerRecord) {
			return fmt.Sprintf("layer %v, wanted %v", got, l.LayerRecord)
		}
		if !l.Durable && !l.Doubtful {
			unsynced++
		}
		if owners[id] == nil {
			loose = append(loose, id)
		}
	}
	for layer, want := range owners {
		var got []string
		for _, rec := range ownersOf(v, layer) {
			got = append(got, rec.ID)
		}
		if !slices.Equal(got, want) {
			return fmt.Sprintf("layer %s has the owners %v, wanted %v", layer, got, want)
		}
	}
	slices.Sort(loose)
	if problem := misused(v, now); problem != "" {
		return problem
	}
	images, layers := unsyncedOf(v)
	switch {
	case len(now.images) != len(ids), keysOf(now.names) != len(named), keysOf(now.layers) != len(v.present):
		return "the snapshot has what is not there"
	case len(v.byLayer) != len(owners):
		return "layers have owners that are not there"
	case now.bytes != bytes || now.inodes != inodes:
		return fmt.Sprintf("%d bytes, %d inodes, wanted %d and %d", now.bytes, now.inodes, bytes, inodes)
	case !slices.Equal(slices.Sorted(maps.Keys(v.loose)), loose):
		return fmt.Sprintf("loose layers %v, wanted %v", v.loose, loose)
	case len(images)+len(layers) != unsynced:
		return fmt.Sprintf("%d images and %d layers are not durable, wanted %d together", len(images), len(layers), unsynced)
	}
	return ""
}

// usesIn are all uses that a snapshot knows, in their order there.
func usesIn(i *Index) string {
	out := []string{}
	for _, part := range i.byDiff.parts {
		for diff, u := range part {
			out = append(out, fmt.Sprint(diff, *u))
		}
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

// misused says which layers or images of a diff id a snapshot does not know, or knows and has not.
func misused(v *inventory, now *Index) string {
	want := map[string]tarUses{}
	for id, l := range v.present {
		u := want[l.DiffID.String()]
		u.layers = reference.Union(u.layers, []string{id})
		want[l.DiffID.String()] = u
	}
	for id, rec := range v.images {
		for _, ref := range rec.Layers {
			u := want[ref.DiffID.String()]
			u.images = reference.Union(u.images, []string{id})
			want[ref.DiffID.String()] = u
		}
	}
	if got := keysOf(now.byDiff); got != len(want) {
		return fmt.Sprintf("%d diff ids are used, wanted %d", got, len(want))
	}
	for diff, w := range want {
		got := now.uses(digest.Digest(diff))
		if !slices.Equal(reference.Union(got.layers, nil), w.layers) ||
			!slices.Equal(reference.Union(got.images, nil), w.images) {
			return fmt.Sprintf("diff id %s has %v, wanted %v", diff, got, w)
		}
	}
	return ""
}

func keysOf[V any](s *shards[V]) int {
	n := 0
	for _, part := range s.parts {
		n += len(part)
	}
	return n
}

// TestSnapshotsShare bounds by how many entries a change copies: those of the shards that it touches, in a store of
// any size.
func TestSnapshotsShare(t *testing.T) {
	v := newInventory([]string{"r.example/*/x:*", "busybox"}, func(id string) string { return id })
	const images = 2000
	for i := range images {
		v.putImage(numbered(i))
		for _, l := range v.images[numbered(i).ID].Layers {
			v.putLayer(&layerState{LayerRecord: LayerRecord{ID: l.ID}})
		}
	}
	v.publish()
	before := v.snapshot.Load()
	rec := *numbered(7)
	rec.Tags = append(rec.Tags, "r.example/more:v1")
	v.putImage(&rec)
	v.putLayer(&layerState{LayerRecord: LayerRecord{ID: "one-more"}})
	v.publish()
	now := v.snapshot.Load()
	if n := copied(before.names, now.names); n > 1 {
		t.Errorf("one more name copied %d shards", n)
	}
	if n := copied(before.layers, now.layers); n > 1 {
		t.Errorf("one more layer copied %d shards", n)
	}
	differ := 0
	for i := range now.images {
		if now.images[i] != before.images[i] {
			differ++
		}
	}
	if differ != 1 {
		t.Errorf("%d images were made anew", differ)
	}
}

// copied counts the shards that two maps do not share.
func copied[V any](a, b *shards[V]) int {
	n := 0
	for i := range a.parts {
		if fmt.Sprintf("%p", a.parts[i]) != fmt.Sprintf("%p", b.parts[i]) {
			n++
		}
	}
	return n
}

// numbered is the n-th record of a large store: ten layers of its own, and names.
func numbered(n int) *ImageRecord {
	id := digest.FromString(fmt.Sprint("image ", n)).String()
	rec := &ImageRecord{
		ID: id, Tags: []string{fmt.Sprintf("r.example/app%d:v1", n)},
		Digests: []string{fmt.Sprintf("r.example/app%d@%s", n, id)},
		Durable: true, Boot: "bench", PulledAt: time.Unix(int64(n), 0).UTC(), Size: 1000,
	}
	for l := range 10 {
		diff := digest.FromString(fmt.Sprint("layer ", n, " ", l))
		rec.Layers = append(rec.Layers, LayerRef{"b" + diff.Encoded(), diff, diff, 100})
	}
	return rec
}

func TestPatterns(t *testing.T) {
	p := parsePatterns([]string{
		"busybox", "r.example/team/*", "r.example/*/web:v1", "quay.io/x/pause@sha256:*", "[", "r.example/a?c:v1",
		"*/tools:*", "*:keep", "*sandbox*",
	})
	for name, want := range map[string]bool{
		"docker.io/library/busybox:latest": true, "docker.io/library/busybox:v2": false, "r.example/team/a/b:v1": true,
		"r.example/x/web:v1": true, "r.example/x/y/web:v1": true, "r.example/web:v1": false, "o.example/x/web:v1": false,
		"r.example/a/tools:v1": true, "r.example/tools": false, "r.example/b:keep": true, "r.example/b:kept": false,
		"r.example/a/sandbox-image:v1": true,
		"quay.io/x/pause@sha256:12":    true, "quay.io/x/pause:v1": false,
		"[": true, "r.example/abc:v1": true, "r.example/abbc:v1": false,
	} {
		if p.match(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
	if parsePatterns(nil).match("busybox") {
		t.Error("no pattern names an image")
	}
}
