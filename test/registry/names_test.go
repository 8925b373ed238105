package registry

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestTagThatMoved pulls a tag again when it names another image.
func TestTagThatMoved(t *testing.T) {
	r := open(t)
	p := r.proxy()
	old := r.app(8 * kib).push()
	tag := old.at(p.Addr)
	old.works(tag)
	was := r.image(tag)
	moved := r.appNamed(strings.Replace(old.name, ":", "-next:", 1), 9*kib)
	moved.name = old.name
	moved.push()
	moved.works(tag)
	if now := r.image(tag); now.Id == was.Id {
		r.Error("the tag still names the old image")
	}
	kept := r.image(was.Id)
	if kept == nil || len(kept.RepoTags) != 0 || !slices.Equal(kept.RepoDigests, was.RepoDigests) {
		r.Fatalf("the old image is now %v", kept)
	}
	old.arrived(was.Id)
	r.remove(was.Id)
	old.absent(was.Id)
	moved.arrived(tag)
}

// TestRemoveByAnyName removes an image that has several names by each sort of them: it goes as a whole, and again is no
// error.
func TestRemoveByAnyName(t *testing.T) {
	r := open(t)
	p := r.proxy()
	for name, choose := range map[string]func(*v1.Image) string{
		"id":     func(i *v1.Image) string { return i.Id },
		"bare":   func(i *v1.Image) string { return strings.TrimPrefix(i.Id, "sha256:") },
		"tag":    func(i *v1.Image) string { return i.RepoTags[1] },
		"digest": func(i *v1.Image) string { return i.RepoDigests[0] },
	} {
		r.sub(name, func(r rig) {
			one := r.app(8 * kib).push()
			two := *one
			two.name = strings.Replace(one.name, ":v1", ":v2", 1)
			two.push()
			one.works(one.at(p.Addr))
			two.works(two.at(p.Addr))
			got := r.image(two.at(p.Addr))
			if len(got.RepoTags) != 2 || len(got.RepoDigests) != 1 {
				r.Fatalf("names are %v and %v", got.RepoTags, got.RepoDigests)
			}
			by := choose(got)
			r.remove(by)
			one.absent(one.at(p.Addr))
			one.absent(two.at(p.Addr))
			r.remove(by)
		})
	}
}

// TestRemoveKeepsSharedLayers removes one of two images that have a layer in common.
func TestRemoveKeepsSharedLayers(t *testing.T) {
	r := open(t)
	p := r.proxy()
	one, two := r.app(8*kib), r.appNamed("t/"+r.unique()+":two", 9*kib)
	common, err := one.image.Layers()
	r.ok(err)
	two.image, err = mutate.AppendLayers(two.image, common...)
	r.ok(err)
	two.layers = append(two.layers, one.layers...)
	one.push()
	two.push()
	one.works(one.at(p.Addr))
	two.works(two.at(p.Addr))
	if asked := one.layers[0].asked(p); len(asked) != 1 {
		r.Errorf("a layer that was there is asked for again: %v", asked)
	}
	r.remove(one.at(p.Addr))
	two.arrived(two.at(p.Addr))
	r.remove(two.at(p.Addr))
	two.absent(two.at(p.Addr))
}

// TestPinned checks what the kubelet is told not to collect.
func TestPinned(t *testing.T) {
	r := openOwn(t, impatient+"pinned = [\"*/base:v?\", \"keep.test/*\"]\n")
	p := r.proxy()
	r.hosts("_default", "server = \""+p.URL()+"\"\n")
	for reference, want := range map[string]bool{
		"keep.test/t/any:v1": true, "other.test/base:v1": true, "other.test/base:v10": false, "other.test/t/any:v1": false,
	} {
		_, name, _ := strings.Cut(reference, "/")
		a := r.appNamed(name, 8*kib).push()
		a.works(reference)
		if got := r.image(reference); got.Pinned != want {
			r.Errorf("%s: pinned is %v", reference, got.Pinned)
		}
		r.remove(reference)
	}
}
