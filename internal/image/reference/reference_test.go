package reference

import (
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
)

// TestParse completes what users write, and refuses what names no image.
func TestParse(t *testing.T) {
	const digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for text, want := range map[string]string{
		"busybox": "docker.io/library/busybox:latest", "r.example:5000/a/b:v1": "r.example:5000/a/b:v1",
		"r.example/a@" + digest: "r.example/a@" + digest, "r.example/a:v1@" + digest: "r.example/a@" + digest,
	} {
		ref, err := Parse(text)
		if err != nil || ref.String() != want || ref.Repository() != RepositoryOf(want) {
			t.Errorf("%s: %v of %s, %v", text, ref, RepositoryOf(want), err)
		}
		if by := want[len(ref.Repository()):]; (by == "@"+digest) != (ref.Digest() == digest) {
			t.Errorf("%s: it goes by %q", text, ref.Digest())
		}
	}
	for _, text := range []string{"", "r.example/A", "a b", "r.example/a@sha256:1"} {
		if _, err := Parse(text); !fail.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestLists puts lists of names together: sorted, or in the order in which they came.
func TestLists(t *testing.T) {
	if got := Union([]string{"b", "a"}, []string{"c", "a"}); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("united: %v", got)
	}
	if got := Append([]string{"b", "a", "c"}, []string{"a"}); !slices.Equal(got, []string{"b", "c", "a"}) {
		t.Errorf("with the last at the end: %v", got)
	}
}
