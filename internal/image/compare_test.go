package image

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"berth/internal/rootfs"
	"berth/test/golden"
)

// A comparison is an image that Berth and umoci both unpack. What they make of it must be the same, name by name.
type comparison struct {
	name  string
	image v1.Image
	// pushed is the index that is pushed and pulled in the place of the image, and leads to it. May be nil.
	pushed v1.ImageIndex

	// refuses is what umoci says when it cannot read the image as it stands. It then gets the same tars as gzip layers.
	refuses string
	// never is what umoci says when it cannot even read those. Then there is nothing to compare with but shows.
	never string
	// keepLinks lets umoci keep symlinks to directories, as the layers of a container do.
	keepLinks bool
	// differs are the beginnings of the lines by which the trees differ on purpose (ours first), each with the reason.
	differs map[string]string
	// equals is a tree that ours must be equal to besides, when it is not empty.
	equals string
	// shows are facts of the tree, checked besides: two tools may be wrong alike. The value is a type, and after a blank
	// the content of a file, the target of a link, or what else the type has.
	shows map[string]string
}

func compareAll(t *testing.T, cases []comparison) {
	if os.Geteuid() != 0 {
		t.Skip("mounting and unpacking for real take root")
	}
	if _, err := exec.LookPath("umoci"); err != nil {
		t.Skip("umoci is not installed: apt-get install umoci")
	}
	host := startRegistry(t, "")
	s := open(t, t.TempDir())
	for _, c := range cases {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			ref := host + "/" + strings.Trim(strings.Map(repositoryRune, c.name), "-") + ":v1"
			c.push(t, ref)
			root := mounted(t, s, pull(t, s, ref))
			ours, err := golden.ReadTree(root)
			if err != nil {
				t.Fatal(err)
			}
			c.judge(t, ours)
			c.match(t, ours)
			for p, want := range c.shows {
				if got := fact(t, root, p); got != want {
					t.Errorf("%q is %q, wanted %q", p, got, want)
				}
			}
		})
	}
	sound(t, s)
}

func (c comparison) push(t *testing.T, ref string) {
	t.Helper()
	if c.pushed != nil {
		push(t, ref, c.pushed)
		return
	}
	push(t, ref, c.image, remote.WithNondistributable)
}

// sameRootTime takes the time of the root out of the comparison: a container's root is born with the container.
func sameRootTime(a, b golden.Tree) {
	n := a["."]
	n.Mtime = b["."].Mtime
	a["."] = n
}

func repositoryRune(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
		return r
	}
	return '-'
}

// judge wants exactly the differences that are on purpose.
func (c comparison) judge(t *testing.T, ours golden.Tree) {
	t.Helper()
	if c.never != "" {
		c.refused(t, twin(t, c.image), c.never)
		return
	}
	theirs, err := golden.ReadTree(c.unpackedByUmoci(t))
	if err != nil {
		t.Fatal(err)
	}
	sameRootTime(ours, theirs)
	lines := golden.DiffTrees(ours, theirs)
	seen := map[string]bool{}
	for _, line := range lines {
		known := false
		for begin := range c.differs {
			if strings.HasPrefix(line, begin) {
				known, seen[begin] = true, true
			}
		}
		if !known {
			t.Errorf("ours, and umoci's: %s", line)
		}
	}
	for begin, reason := range c.differs {
		if !seen[begin] {
			t.Errorf("the difference %s (%s) is no more", begin, reason)
		}
	}
}

func (c comparison) match(t *testing.T, ours golden.Tree) {
	t.Helper()
	if c.equals == "" {
		return
	}
	want, err := golden.ReadTree(c.equals)
	if err != nil {
		t.Fatal(err)
	}
	sameRootTime(ours, want)
	for _, line := range golden.DiffTrees(ours, want) {
		t.Errorf("ours, and what was wanted: %s", line)
	}
}

// mounted shows an image as a container sees it.
func mounted(t *testing.T, s *Store, img Image) string {
	t.Helper()
	dir, at := t.TempDir(), filepath.Join(t.TempDir(), "root")
	if err := rootfs.Prepare(dir, at, rootfs.Options{Lower: s.LayerDirs(img)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rootfs.Unmount(at); err != nil {
			t.Error(err)
		}
	})
	return at
}

// unpackedByUmoci unpacks the image, or when umoci refuses it its twin, from an OCI layout.
func (c comparison) unpackedByUmoci(t *testing.T) string {
	t.Helper()
	img := c.image
	if c.refuses != "" {
		c.refused(t, img, c.refuses)
		img = twin(t, img)
	}
	root, said, err := c.umoci(t, img)
	if err != nil {
		t.Fatalf("umoci: %v: %s", err, said)
	}
	return root
}

// refused checks that umoci does not read the image, for the reason that is known.
func (c comparison) refused(t *testing.T, img v1.Image, reason string) {
	t.Helper()
	if _, said, err := c.umoci(t, img); err == nil || !strings.Contains(said, reason) {
		t.Errorf("umoci no longer refuses the image with %q: %v: %s", reason, err, said)
	}
}

func (c comparison) umoci(t *testing.T, img v1.Image) (root, said string, err error) {
	t.Helper()
	dir := t.TempDir()
	l, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.AppendImage(img,
		layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "v1"})); err != nil {
		t.Fatal(err)
	}
	root = filepath.Join(dir, "rootfs")
	args := []string{"raw", "unpack", "--image", filepath.Join(dir, "layout") + ":v1"}
	if c.keepLinks {
		args = append(args, "--keep-dirlinks")
	}
	out, err := exec.Command("umoci", append(args, root)...).CombinedOutput()
	return root, string(out), err
}

// twin is an OCI image of the same tars, each as a gzip layer.
func twin(t *testing.T, img v1.Image) v1.Image {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var out []v1.Layer
	for _, l := range layers {
		rc, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(rc)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, gzipped(plain))
	}
	return imageOf(t, out...)
}

// gzipped is a tar as a layer.
func gzipped(plain []byte) packed {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, _ = w.Write(plain)
	_ = w.Close()
	return packed{buf.Bytes(), plain, types.OCILayer}
}

// fact says what is at a path, in the form of comparison.shows.
func fact(t *testing.T, root, p string) string {
	t.Helper()
	tree, err := golden.ReadTree(filepath.Join(root, p))
	if err != nil {
		return "nothing"
	}
	n := tree["."]
	switch n.Type {
	case "file":
		body, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			t.Fatal(err)
		}
		return "file " + string(body)
	case "symlink":
		return "symlink " + n.Target
	case "char", "block":
		return n.Type + " " + n.Device
	}
	return n.Type
}
