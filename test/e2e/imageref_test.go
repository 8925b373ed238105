package e2e

import (
	"path/filepath"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
)

// pushed pushes an image of its own under several names, and returns each by its digest.
func (r rig) pushed(repositories ...string) (byDigest []string) {
	r.Helper()
	recipe, err := fixture.BusyboxRecipe()
	r.ok(err)
	recipe.Layers = append(append([][]fixture.File{}, recipe.Layers...),
		[]fixture.File{{Name: "srv/note", Body: []byte(unique(r.T))}})
	img, err := recipe.Build()
	r.ok(err)
	for _, repository := range repositories {
		byDigest = append(byDigest, r.push(repository+":v1", img))
	}
	return byDigest
}

// refs are the image_ref and the image_id of a container, which must be the same wherever they are told.
func (c *ctr) refs() (ref, id string) {
	c.Helper()
	st := c.status()
	all, err := c.n.Runtime.ListContainers(ctx(), &v1.ContainerFilter{Id: c.cid})
	c.ok(err)
	if len(all) != 1 || all[0].ImageRef != st.ImageRef || all[0].ImageId != st.ImageId {
		c.Errorf("the list has %v, the status image_ref %s and image_id %s", all, st.ImageRef, st.ImageId)
	}
	return st.ImageRef, st.ImageId
}

// TestImageRef wants the digest of a container's image in the repository that was asked for, however it was asked for.
// The id of the image stays the same under each of its names.
func TestImageRef(t *testing.T) {
	each(t, func(r rig) {
		one, two := r.repository()+"-ref-one", r.repository()+"-ref-two"
		digests := r.pushed(one, two)
		var id string
		for _, name := range []string{ref(one + ":v1"), ref(two + ":v1"), digests[1]} {
			pulled, err := r.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: name}, nil, nil)
			r.ok(err)
			if id == "" {
				id = pulled
			}
			if pulled != id {
				r.Errorf("pull of %s answered %s, wanted %s", name, pulled, id)
			}
		}
		p := r.pod()
		for _, c := range []struct {
			name string
			asks *v1.ImageSpec
			want string
		}{
			{"tag", &v1.ImageSpec{Image: ref(one + ":v1")}, digests[0]},
			{"other-tag", &v1.ImageSpec{Image: ref(two + ":v1")}, digests[1]},
			{"digest", &v1.ImageSpec{Image: digests[1]}, digests[1]},
			{"id", &v1.ImageSpec{Image: id, UserSpecifiedImage: ref(two + ":v1")}, digests[1]},
			{"id-by-digest", &v1.ImageSpec{Image: id, UserSpecifiedImage: digests[0]}, digests[0]},
			{"id-unnamed", &v1.ImageSpec{Image: id}, digests[0]},
			{"id-of-a-strange-name", &v1.ImageSpec{Image: id, UserSpecifiedImage: "NOT a reference"}, digests[0]},
			{"id-of-a-name-never-pulled", &v1.ImageSpec{Image: id, UserSpecifiedImage: "registry.example/else:v1"}, digests[0]},
		} {
			config := busybox(c.name, "true", func(config *v1.ContainerConfig) { config.Image = c.asks })
			gotRef, gotID := p.create(config).refs()
			if gotRef != c.want || gotID != id {
				r.Errorf("%s: image_ref %s, image_id %s; wanted %s, %s", c.name, gotRef, gotID, c.want, id)
			}
		}
	})
}

// TestImageRefOutlivesItsTag keeps what was told of a container's image when its names are removed and the daemon
// restarts.
func TestImageRefOutlivesItsTag(t *testing.T) {
	own(t, func(r rig) {
		repository := r.repository() + "-kept"
		digests := r.pushed(repository)
		name := ref(repository + ":v1")
		id, err := r.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: name}, nil, nil)
		r.ok(err)
		c := r.pod().start(busybox("main", "sleep 1000", imageMount(name, "/volume"), func(c *v1.ContainerConfig) {
			c.Image.Image = name
		}))
		check := func(when string) {
			r.Helper()
			if got, _ := c.refs(); got != digests[0] {
				r.Errorf("%s: image_ref %s, wanted %s", when, got, digests[0])
			}
			if got := c.status().Mounts[0].GetImage().GetImageRef(); got != id {
				r.Errorf("%s: the image volume has image_ref %s, wanted %s", when, got, id)
			}
		}
		check("made")
		r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: name}))
		check("without its names")
		r.ok(r.n.Restart())
		check("after a restart")
	})
}

// TestImageRefOfAnImport is the id of an image that is in no repository.
func TestImageRefOfAnImport(t *testing.T) {
	own(t, func(r rig) {
		image := r.layered("import")
		r.mustBerth("pull", image)
		archive := filepath.Join(r.TempDir(), "image.tar")
		r.mustBerth("image", "export", "-o", archive, image)
		r.mustBerth("image", "rm", image)
		r.mustBerth("image", "import", archive)
		config := node.Container("imported", image, []string{"true"})
		if ref, id := r.pod().create(config).refs(); ref != id || id != r.image(image).Id {
			r.Errorf("image_ref %s, image_id %s, wanted %s for both", ref, id, r.image(image).Id)
		}
	})
}
