package image

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// mostDigests is how many digests of one repository an image keeps.
const mostDigests = 8

// TestDigestsThatKeepChanging pulls an image whose index is made anew again and again, as by a build that adds
// attestations.
func TestDigestsThatKeepChanging(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	img := forPlatform(t, "same", v1.Platform{OS: "linux", Architecture: "amd64"})
	s := open(t, t.TempDir(), func(c *Config) { c.Platform = "linux/amd64" })
	var got Image
	for i := range mostDigests + 4 {
		index := mutate.AppendManifests(empty.Index, img)
		index = mutate.Annotations(index, map[string]string{"build": fmt.Sprint(i)}).(v1.ImageIndex)
		push(t, host+"/app:v1", index)
		got = pull(t, s, host+"/app:v1")
	}
	if len(got.RepoDigests) != mostDigests || len(s.List()) != 1 {
		t.Errorf("%d images, digests %v", len(s.List()), got.RepoDigests)
	}
	last := got.RepoDigests[mostDigests-1]
	if ref := got.RepoDigest(host + "/app:v1"); ref != last {
		t.Errorf("the tag's digest is %s, and %s was pulled last", ref, last)
	}
	for _, name := range got.RepoDigests {
		if found, ok := s.Get(name); !ok || found.ID != got.ID || !strings.HasPrefix(name, host+"/app@") {
			t.Errorf("%s names %v", name, found.ID)
		}
	}
}
