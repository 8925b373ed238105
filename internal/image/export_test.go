package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"berth/internal/image/archive"
	"berth/internal/image/catalog"
	"berth/internal/image/layer"
	"berth/internal/image/progress"
)

// exportCases are images whose layers do not lie on disk as their tars have them.
func exportCases(t *testing.T) map[string]v1.Image {
	base := gz(t, folder("usr"), folder("usr/lib"),
		entry{Header: tar.Header{Name: "lib", Typeflag: tar.TypeSymlink, Linkname: "usr/lib"}}, file("usr/lib/a", "a"))
	return map[string]v1.Image{
		"plain": imageOf(t, gz(t, folder("d"), file("d/x", strings.Repeat("x", 100_000)), file("y", "y"))),
		"finalized": imageOf(t, base,
			zst(t, file("lib/b", "b"), entry{Header: tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "usr/lib/a"}})),
		"replaced": imageOf(t,
			plainLayer(t, file("a", "1"), file("a", "22"), folder("d"), file("d/f", "in it"), file("d", "no more"))),
		"hidden":   imageOf(t, base, gz(t, file("usr/lib/.wh.a", "with content"), file(".wh.nothing", ""))),
		"twice":    imageOf(t, base, gz(t, file("z", "z")), base),
		"no layer": imageOf(t),
		"docker":   dockerImage(t, gz(t, file("hello", "docker"))),
	}
}

func exportTo(t *testing.T, s *Store, req ExportRequest) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := s.Export(t.Context(), req, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// trees are the layers' trees, each as one tar made by this very process.
func trees(t *testing.T, s *Store, img Image) []string {
	t.Helper()
	var out []string
	for _, id := range img.Layers {
		raw, err := os.ReadFile(s.disk.Path(catalog.LayersDir, id, layer.ManifestFile))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(raw))
	}
	return out
}

func TestExportGivesTheImageBack(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	for n, built := range exportCases(t) {
		ref := host + "/export/" + strings.ReplaceAll(n, " ", "-") + ":v1"
		push(t, ref, built)
		for _, req := range []ExportRequest{{Format: archive.FormatOCI}, {Format: archive.FormatOCI, Compress: true},
			{Format: archive.FormatDocker}, {Format: archive.FormatDocker, Compress: true}} {
			req.Images = []string{ref}
			form := req.Format
			if req.Compress {
				form += " gzip"
			}
			t.Run(n+" "+form, func(t *testing.T) {
				s := open(t, t.TempDir())
				before := pull(t, s, ref)
				want := trees(t, s, before)
				data := exportTo(t, s, req)
				if !bytes.Equal(data, exportTo(t, s, req)) {
					t.Error("a second export differs")
				}
				if err := s.Remove(t.Context(), before.ID); err != nil {
					t.Fatal(err)
				}
				if n := layersOnDisk(t, s); n != 0 {
					t.Fatalf("%d layers are left", n)
				}
				imgs, err := s.Import(t.Context(), bytes.NewReader(data), nil)
				if err != nil {
					t.Fatal(err)
				}
				after, ok := s.Get(ref)
				if !ok || after.ID != before.ID || len(imgs) != 1 || !slices.Equal(after.RepoTags, before.RepoTags) {
					t.Fatalf("imported %+v", imgs)
				}
				if got := trees(t, s, after); !slices.Equal(got, want) {
					t.Error("the layers differ")
				}
				sound(t, s)
				independent(t, data, req.Format, built)
			})
		}
	}
}

// independent reads an archive with a library that is not ours.
func independent(t *testing.T, data []byte, format string, want v1.Image) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	got := map[string]v1.Image{}
	saved, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	got["docker"] = saved
	if m, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(path) }); err != nil || len(m) != 1 ||
		len(m[0].RepoTags) != 1 {
		t.Errorf("manifest.json: %+v, %v", m, err)
	} else if _, err := name.NewTag(m[0].RepoTags[0], name.StrictValidation); err != nil {
		t.Error(err)
	}
	if format == archive.FormatOCI {
		got["oci"] = fromLayout(t, data)
	}
	for kind, img := range got {
		if err := validate.Image(img, validate.Fast); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		sameTars(t, img, want)
		a, _ := img.ConfigName()
		if b, _ := want.ConfigName(); a != b {
			t.Errorf("%s: id %s, want %s", kind, a, b)
		}
	}
}

// sameTars compares the layers' plain tars with those that the image was built from.
func sameTars(t *testing.T, img, want v1.Image) {
	t.Helper()
	a, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	b, _ := want.Layers()
	for i := range b {
		rc, err := a[i].Compressed()
		if err != nil {
			t.Fatal(err)
		}
		plain, err := layer.Decompress(t.Context(), rc, false)
		if err != nil {
			t.Fatal(err)
		}
		sum, _, err := v1.SHA256(plain)
		_ = rc.Close()
		if diff, _ := b[i].DiffID(); err != nil || sum != diff {
			t.Errorf("layer %d is %s, want %s: %v", i, sum, diff, err)
		}
	}
}

func fromLayout(t *testing.T, data []byte) v1.Image {
	t.Helper()
	dir := t.TempDir()
	for tr := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		full := filepath.Join(dir, h.Name)
		_ = os.MkdirAll(filepath.Dir(full), 0o755)
		body, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	idx, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := idx.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	img, err := idx.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestExportNames exports several images with what they share, and as many names as were asked for.
func TestExportNames(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	base := gz(t, file("base", strings.Repeat("b", 50_000)))
	push(t, host+"/one:v1", imageOf(t, base, gz(t, file("hello", "one"))))
	push(t, host+"/one:latest", imageOf(t, base, gz(t, file("hello", "one"))))
	push(t, host+"/two:v2", imageOf(t, base, gz(t, file("hello", "two"))))
	s := open(t, t.TempDir())
	one := pull(t, s, host+"/one:v1")
	pull(t, s, host+"/one:latest")
	two := pull(t, s, host+"/two:v2")
	for _, c := range []struct {
		ask  []string
		want []string
	}{
		{[]string{host + "/one:v1"}, []string{"one:v1"}},
		{[]string{host + "/one"}, []string{"one:latest"}},
		{[]string{one.ID}, []string{"one:latest", "one:v1"}},
		{[]string{one.RepoDigests[0]}, []string{"one:latest", "one:v1"}},
		{[]string{host + "/one:v1", two.ID[7:19], host + "/one:latest"}, []string{"one:latest", "one:v1", "two:v2"}},
	} {
		for _, format := range []string{archive.FormatOCI, archive.FormatDocker} {
			data := exportTo(t, s, ExportRequest{Images: c.ask, Format: format})
			if n := bytes.Count(data, []byte(strings.Repeat("b", 50_000))); n != 1 {
				t.Errorf("%v: a layer is there %d times", c.ask, n)
			}
			other := open(t, t.TempDir())
			imgs, err := other.Import(t.Context(), bytes.NewReader(data), nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, img := range imgs {
				for _, tag := range img.RepoTags {
					got = append(got, strings.TrimPrefix(tag, host+"/"))
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("%v as %s: names %v, want %v", c.ask, format, got, c.want)
			}
		}
	}
}

func TestExportRefuses(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	ref := host + "/app:v1"
	push(t, ref, imageOf(t, gz(t, folder("etc"), file("etc/passwd", "root"), file("etc/big", strings.Repeat("x", 1<<20)))))
	dir := func(s *Store) string { img, _ := s.Get(ref); return s.disk.Path(catalog.LayersDir, img.Layers[0]) }
	for n, c := range map[string]struct {
		req  ExportRequest
		do   func(s *Store) error
		kind error
		says string
	}{
		"an unknown image": {ExportRequest{Images: []string{"nobody:v1"}}, nil, errdefs.ErrNotFound, "nobody:v1"},
		"no image":         {ExportRequest{}, nil, errdefs.ErrInvalidArgument, "no image"},
		"an unknown form": {ExportRequest{Images: []string{ref}, Format: "zip"}, nil, errdefs.ErrInvalidArgument,
			"oci or docker"},
		"other content": {ExportRequest{Images: []string{ref}}, func(s *Store) error {
			return os.WriteFile(dir(s)+"/fs/etc/passwd", []byte("toor"), 0o644)
		}, errdefs.ErrDataLoss, "etc/passwd has "},
		"other content, zipped": {ExportRequest{Images: []string{ref}, Compress: true}, func(s *Store) error {
			return os.WriteFile(dir(s)+"/fs/etc/passwd", []byte("toor"), 0o644)
		}, errdefs.ErrDataLoss, "etc/passwd has "},
		"a lost file": {ExportRequest{Images: []string{ref}},
			func(s *Store) error { return os.Remove(dir(s) + "/fs/etc/big") }, errdefs.ErrDataLoss, "etc/big is missing"},
		"an old layer": {ExportRequest{Images: []string{ref}}, func(s *Store) error {
			return os.Remove(dir(s) + "/skeleton")
		},
			errdefs.ErrFailedPrecondition, "pull it again"},
		"a torn skeleton": {ExportRequest{Images: []string{ref}},
			func(s *Store) error { return os.Truncate(dir(s)+"/skeleton", 30) }, errdefs.ErrDataLoss, "check --repair"},
	} {
		t.Run(n, func(t *testing.T) {
			s := open(t, t.TempDir())
			pull(t, s, ref)
			if c.do != nil {
				if err := c.do(s); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			err := s.Export(t.Context(), c.req, &out)
			if kindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("kind %v: %v", kindOf(err), err)
			}
			if _, err := open(t, t.TempDir()).Import(t.Context(), bytes.NewReader(out.Bytes()), nil); err == nil {
				t.Error("what came out looks like a whole archive")
			}
			nothingInFlight(t, s)
		})
	}
}

// leaver is a client that goes away after some bytes.
type leaver struct {
	left  int
	leave func()
}

func (l *leaver) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		l.leave()
	}
	return len(p), nil
}

func TestExportEndsWithItsClient(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	ref := host + "/app:v1"
	push(t, ref,
		imageOf(t, gz(t, file("big", strings.Repeat("x", 4<<20))), gz(t, file("more", strings.Repeat("y", 4<<20)))))
	s := open(t, t.TempDir())
	img := pull(t, s, ref)
	for _, compress := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		err := s.Export(ctx, ExportRequest{Images: []string{ref}, Compress: compress}, &leaver{1000, cancel})
		if kindOf(err) != context.Canceled {
			t.Errorf("got %v", err)
		}
		nothingInFlight(t, s)
		broken := errors.New("the pipe is gone")
		if err := s.Export(t.Context(), ExportRequest{Images: []string{ref}, Compress: compress},
			failWriter{broken}); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	}
	// An image that is removed meanwhile comes out whole, and then its layers go.
	var last progress.Event
	var out bytes.Buffer
	err := s.Export(t.Context(), ExportRequest{Images: []string{ref}, Progress: func(p progress.Event) {
		if last.Phase == "" {
			if err := s.Remove(context.Background(), img.ID); err != nil {
				t.Error(err)
			}
		}
		last = p
	}}, &out)
	if err != nil || last.Phase != progress.Done || last.Done != last.Total {
		t.Fatalf("%v after %+v", err, last)
	}
	if n := layersOnDisk(t, s); n != 0 {
		t.Errorf("%d layers are left", n)
	}
	if imgs, err := s.Import(t.Context(), &out, nil); err != nil || imgs[0].ID != img.ID {
		t.Errorf("%v, %v", imgs, err)
	}
}

type failWriter struct{ err error }

func (f failWriter) Write([]byte) (int, error) { return 0, f.err }
