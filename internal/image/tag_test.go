package image

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// TestTag gives an image one more tag, twice, and then another image that tag. The next daemon finds it there.
func TestTag(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/app:v1", imageOf(t, gz(t, file("a", "1"))))
	push(t, host+"/app:v2", imageOf(t, gz(t, file("a", "2"))))
	root := t.TempDir()
	s := open(t, root)
	one, two := pull(t, s, host+"/app:v1"), pull(t, s, host+"/app:v2")
	has := func(s *Store, name, id string) {
		t.Helper()
		if got, ok := s.Get(name); !ok || got.ID != id {
			t.Errorf("%s names %q, wanted %q", name, got.ID, id)
		}
	}
	const stable = "example.com/app:stable"
	for range 2 {
		if err := Tag(s, host+"/app:v1", stable); err != nil {
			t.Fatal(err)
		}
	}
	has(s, stable, one.ID)
	has(s, host+"/app:v1", one.ID)
	if err := Tag(s, two.ID, stable); err != nil {
		t.Fatal(err)
	}
	durable(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, root)
	has(s, stable, two.ID)
	has(s, host+"/app:v1", one.ID)
	has(s, host+"/app:v2", two.ID)
	sound(t, s)
}

// TestTagsRefused wants no name to change where an image cannot be given a tag.
func TestTagsRefused(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/app:v1", imageOf(t, gz(t, file("a", "1"))))
	s := open(t, t.TempDir())
	img := pull(t, s, host+"/app:v1")
	for name, c := range map[string]struct {
		image, tag string
		kind       error
		words      string
	}{
		"no image":     {"example.com/none:v1", "example.com/app:new", errdefs.ErrNotFound, "image example.com/none:v1"},
		"a part of id": {img.ID[:20], "example.com/app:new", errdefs.ErrNotFound, img.ID[:20]},
		"no name":      {img.ID, "Not A Name", errdefs.ErrInvalidArgument, "Not A Name"},
		"a digest":     {img.ID, "example.com/app@" + img.ID, errdefs.ErrInvalidArgument, "names a digest"},
	} {
		err := Tag(s, c.image, c.tag)
		if err == nil || kindOf(err) != c.kind || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v (%v)", name, err, kindOf(err))
		}
	}
	if got, ok := s.Get(img.ID); !ok || len(got.RepoTags) != 1 {
		t.Errorf("the image has the tags %v", got.RepoTags)
	}
}

// TestUntag takes an image's tags away, one after the other. It stays, also for the next daemon, until it is removed.
func TestUntag(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/app:v1", imageOf(t, gz(t, file("a", "1"))))
	root := t.TempDir()
	s := open(t, root)
	img := pull(t, s, host+"/app:v1")
	if err := Tag(s, img.ID, "example.com/app:stable"); err != nil {
		t.Fatal(err)
	}
	tags := func(want string) {
		t.Helper()
		if got, ok := s.Get(img.ID); !ok || strings.Join(got.RepoTags, " ") != want {
			t.Errorf("the image has the tags %v, wanted %s", got.RepoTags, want)
		}
	}
	again := func() {
		t.Helper()
		durable(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, root)
	}
	for range 2 {
		if err := Untag(s, host+"/app:v1"); err != nil {
			t.Fatal(err)
		}
		tags("example.com/app:stable")
	}
	if _, ok := s.Get(host + "/app:v1"); ok {
		t.Error("the tag still names an image")
	}
	again()
	tags("example.com/app:stable")
	if err := Untag(s, "example.com/app:stable"); err != nil {
		t.Fatal(err)
	}
	again()
	tags("")
	sound(t, s)
	for name, words := range map[string]string{"Not A Name": "Not A Name", host + "/app@" + img.ID: "names a digest"} {
		if err := Untag(s, name); kindOf(err) != errdefs.ErrInvalidArgument || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRenewedWhileRemoved pulls an image with a new tag each time, and gives it another, while it is removed: the pull
// brings it anew, and the tag is refused because there is no such image.
func TestRenewedWhileRemoved(t *testing.T) {
	host := startRegistry(t, "")
	built := imageOf(t, gz(t, file("a", "1")))
	s := open(t, t.TempDir())
	for n := range 40 {
		push(t, fmt.Sprintf("%s/app:v%d", host, n), built)
	}
	for n := range 40 {
		ref := fmt.Sprintf("%s/app:v%d", host, n)
		img := pull(t, s, host+"/app:v0")
		durable(t, s)
		var all sync.WaitGroup
		all.Go(func() {
			time.Sleep(time.Duration(n) * 100 * time.Microsecond)
			if err := s.Remove(t.Context(), img.ID); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); err != nil {
				t.Errorf("the pull: %v", err)
			}
		})
		all.Go(func() {
			if err := Tag(s, img.ID, "example.com/app:new"); err != nil && kindOf(err) != errdefs.ErrNotFound {
				t.Errorf("the tag: %v", err)
			}
		})
		all.Wait()
	}
	sound(t, s)
}
