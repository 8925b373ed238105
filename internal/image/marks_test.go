package image

import (
	"archive/tar"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/limit"
)

// TestLookUpsOfAnImage has layers bring hard links to a file in a deep directory that all layers below have: how many
// names are looked up there is bounded for all layers together, and none is fetched again when there are too many.
func TestLookUpsOfAnImage(t *testing.T) {
	host := startRegistry(t, "")
	deep := strings.Repeat("d/", 30)
	var layers []v1.Layer
	for n := range 6 {
		entries := []entry{file(fmt.Sprint(deep, "f", n), "x")}
		for link := range 10 * min(n, 1) {
			name := fmt.Sprint("l", n, "-", link)
			entries = append(entries, entry{Header: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: deep + "f0"}})
		}
		layers = append(layers, gz(t, entries...))
	}
	push(t, host+"/deep:v1", imageOf(t, layers...))
	most := limit.ImageLooks
	t.Cleanup(func() { limit.ImageLooks = most })
	for _, crew := range []Crew{testCrew(), nil} {
		for _, c := range []struct {
			most    int64
			refused bool
		}{{3000, true}, {20_000, false}} { // the last layer alone needs fewer than 3000
			limit.ImageLooks.Limit = c.most
			p := startProxy(t, host, nil)
			s := open(t, t.TempDir(), withCrew(crew))
			_, err := s.Pull(t.Context(), PullRequest{Reference: p.host + "/deep:v1"})
			if refused := kindOf(err) == errdefs.ErrResourceExhausted &&
				strings.Contains(err.Error(), limit.ImageLooks.Name); refused != c.refused || !refused && err != nil {
				t.Errorf("with at most %d look-ups the pull ends with %v", c.most, err)
			}
			for blob, n := range p.blobGets() {
				if n > 1 {
					t.Errorf("with at most %d look-ups %s is fetched %d times", c.most, blob, n)
				}
			}
			sound(t, s)
		}
	}
}

// TestQuestionsOfAnImage has each layer of an image bring a file into the same deep directory. The processes that
// finalize them, or the daemon, look at no mark of the overlay where no layer has one. Where each has one, how many
// they look at is bounded for all layers of the image together.
func TestQuestionsOfAnImage(t *testing.T) {
	host := startRegistry(t, "")
	deep := strings.Repeat("d/", 30)
	build := func(more ...entry) v1.Image {
		var layers []v1.Layer
		for n := range 8 {
			layers = append(layers, gz(t, append(more, file(fmt.Sprint(deep, "f", n), "x"))...))
		}
		return imageOf(t, layers...)
	}
	push(t, host+"/plain:v1", build())
	push(t, host+"/marked:v1", build(file("d/o/.wh..wh..opq", "")))
	most := limit.ImageMarks
	t.Cleanup(func() { limit.ImageMarks = most })
	for _, c := range []struct {
		image   string
		most    int64
		refused bool
		crew    Crew
	}{
		{"plain", 1, false, testCrew()}, {"marked", 300, true, testCrew()}, {"marked", 900, false, testCrew()},
		{"plain", 1, false, nil}, {"marked", 300, true, nil}, {"marked", 900, false, nil}, // the daemon itself
	} {
		limit.ImageMarks.Limit = c.most
		s := open(t, t.TempDir(), withCrew(c.crew))
		if c.refused {
			p := startProxy(t, host, nil)
			_, err := s.Pull(t.Context(), PullRequest{Reference: p.host + "/marked:v1"})
			for blob, n := range p.blobGets() {
				if n > 1 {
					t.Errorf("with at most %d questions %s is fetched %d times", c.most, blob, n)
				}
			}
			if kindOf(err) != errdefs.ErrResourceExhausted || !strings.Contains(err.Error(), limit.ImageMarks.Name) {
				t.Errorf("with at most %d questions the pull ends with %v", c.most, err)
			}
			continue
		}
		img := pull(t, s, host+"/"+c.image+":v1")
		for n, id := range img.Layers {
			if got := s.catalog.Snapshot().Layer(id).Unmarked; got != (c.image == "plain") {
				t.Errorf("%s: layer %d is unmarked: %v", c.image, n, got)
			}
		}
		sound(t, s)
	}
}
