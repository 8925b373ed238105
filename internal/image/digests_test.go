package image

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

func TestDigestsOf(t *testing.T) {
	var all []string
	for i := range 3 * maxDigests {
		all = digestsOf(all, []string{fmt.Sprint("a@", i)})
		if i == 0 {
			all = digestsOf(all, []string{"b@first"})
		}
	}
	if none := digestsOf(nil, nil); none != nil {
		t.Errorf("%v of nothing: a record that says so would be written anew", none)
	}
	if len(all) != maxDigests+1 || all[0] != "b@first" || all[1] != fmt.Sprint("a@", 2*maxDigests) {
		t.Errorf("kept %v", all)
	}
	again := digestsOf(all, []string{"b@first"})
	if len(again) != len(all) || again[len(again)-1] != "b@first" {
		t.Errorf("pulled once more: %v", again)
	}
	if same := digestsOf(again, []string{"b@first"}); !slices.Equal(same, again) {
		t.Errorf("%v became %v: a pull that changes nothing would write", again, same)
	}
}

// TestDigestsThatKeepChanging pulls an image whose index is made anew again and again, as by a build that adds
// attestations.
func TestDigestsThatKeepChanging(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	img := forPlatform(t, "same", v1.Platform{OS: "linux", Architecture: "amd64"})
	s := open(t, t.TempDir(), func(c *Config) { c.Platform = "linux/amd64" })
	var got Image
	for i := range maxDigests + 4 {
		index := mutate.AppendManifests(empty.Index, img)
		index = mutate.Annotations(index, map[string]string{"build": fmt.Sprint(i)}).(v1.ImageIndex)
		push(t, host+"/app:v1", index)
		got = pull(t, s, host+"/app:v1")
	}
	if len(got.RepoDigests) != maxDigests || len(s.List()) != 1 {
		t.Errorf("%d images, digests %v", len(s.List()), got.RepoDigests)
	}
	last := got.RepoDigests[maxDigests-1]
	if ref := got.RepoDigest(host + "/app:v1"); ref != last {
		t.Errorf("the tag's digest is %s, and %s was pulled last", ref, last)
	}
	for _, name := range got.RepoDigests {
		if found, ok := s.Get(name); !ok || found.ID != got.ID || !strings.HasPrefix(name, host+"/app@") {
			t.Errorf("%s names %v", name, found.ID)
		}
	}
}
