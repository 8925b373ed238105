package image

import "testing"

// TestRepoDigest chooses among the digests of an image by the names that were asked for.
func TestRepoDigest(t *testing.T) {
	const id, d1, d2 = "sha256:aaaa", "@sha256:1111111111111111111111111111111111111111111111111111111111111111",
		"@sha256:2222222222222222222222222222222222222222222222222222222222222222"
	img := Image{
		ID:          id,
		RepoDigests: []string{"docker.io/library/web" + d1, "registry.example/web" + d1, "docker.io/library/web" + d2}}
	for _, c := range []struct {
		names []string
		want  string
	}{
		{nil, "docker.io/library/web" + d1},
		{[]string{"", id}, "docker.io/library/web" + d1},
		{[]string{"web"}, "docker.io/library/web" + d2},
		{[]string{"web" + d1}, "docker.io/library/web" + d1},
		{[]string{"registry.example/web:v3", "web"}, "registry.example/web" + d1},
		{[]string{"registry.example/we:v3", "web"}, "docker.io/library/web" + d2},
		{[]string{"%%", "registry.example/web"}, "registry.example/web" + d1},
	} {
		if got := img.RepoDigest(c.names...); got != c.want {
			t.Errorf("%q: %s, wanted %s", c.names, got, c.want)
		}
	}
	if got := (Image{ID: id}).RepoDigest("web"); got != id {
		t.Errorf("an image in no repository: %s, wanted its id", got)
	}
}
