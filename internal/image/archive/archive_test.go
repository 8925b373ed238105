package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/image/document"
	"berth/internal/image/layer"
	"berth/internal/limit"
)

// unpacked is a layer of one file, in a directory of its own.
func unpacked(t *testing.T, name string) Layer {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(name))})
	if err == nil {
		_, err = w.Write([]byte(name))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	l := Layer{DiffID: digest.FromBytes(plain.Bytes()), Dir: t.TempDir()}
	limits := layer.Limits{Bytes: 1 << 20, Entries: 10, Memory: 1 << 20}
	if _, err := layer.Unpack(t.Context(), &plain, l.Dir, limits); err != nil {
		t.Fatal(err)
	}
	return l
}

// imageOf is an image of layers.
func imageOf(t *testing.T, tag string, layers ...Layer) *Image {
	t.Helper()
	config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}}
	for _, l := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.DiffID)
	}
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return &Image{
		ID: digest.FromBytes(raw), Config: raw, Platform: config.Platform, Tags: []string{tag}, Layers: layers,
	}
}

// place is where a test keeps an archive, with room for most bytes.
func place(t *testing.T, most int64) Place {
	t.Helper()
	dir := t.TempDir()
	return Place{
		dir, &diskspace.Gauge{Dir: dir}, limit.ArchiveBytes.At(most), limit.ArchiveDocument.At(1 << 20), limit.Documents,
	}
}

var limits = SavedLimits{limit.ConfigBytes.At(1 << 20), document.Limits{Layers: 10, Bytes: 1 << 20}}

// TestArchiveAlone writes two images that share a layer in each form, and reads them back: the same ids and names, and
// each blob what its digest says.
func TestArchiveAlone(t *testing.T) {
	base := unpacked(t, "base")
	written := []*Image{
		imageOf(t, "r.example/a:v1", base, unpacked(t, "a")), imageOf(t, "r.example/b:v1", base),
	}
	for _, form := range []string{FormatOCI, FormatDocker} {
		for _, compress := range []bool{false, true} {
			var out bytes.Buffer
			err := Write(t.Context(), &out, written, Options{
				Format: form, Compress: compress, Disk: &diskspace.Gauge{Dir: t.TempDir()},
				Scratch: func() (string, func(), error) { return t.TempDir(), func() {}, nil },
			})
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			a, err := Read(t.Context(), &out, place(t, 1<<20))
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			if a.IsLayout() != (form == FormatOCI) || !a.IsSaved() {
				t.Errorf("%s: is a layout: %v", form, a.IsLayout())
			}
			saved, err := a.Saved()
			if err != nil || len(saved) != len(written) {
				t.Fatalf("%s: %d images, %v", form, len(saved), err)
			}
			for i, got := range saved {
				same(t, a, written[i], got)
			}
			if form == FormatOCI {
				sameLayout(t, a, written)
			}
		}
	}
}

// same wants an image of an archive to be the one that was written.
func same(t *testing.T, a *Archive, want *Image, got SavedImage) {
	t.Helper()
	doc, err := a.Document(t.Context(), limits, got)
	if err != nil {
		t.Fatal(err)
	}
	if doc.Manifest.Config.Digest != want.ID || !slices.Equal(got.Tags, want.Tags) {
		t.Errorf("%s %v, wanted %s %v", doc.Manifest.Config.Digest, got.Tags, want.ID, want.Tags)
	}
	for _, l := range doc.Manifest.Layers {
		in, err := a.Open(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(in)
		if err = errors.Join(err, in.Close(), document.Prove(raw, l, "layer")); err != nil {
			t.Error(err)
		}
	}
}

// sameLayout wants the index of a layout to lead to the images that were written, under their names.
func sameLayout(t *testing.T, a *Archive, written []*Image) {
	t.Helper()
	l, err := a.Layout()
	if err != nil || len(l.Manifests) != len(written) {
		t.Fatalf("%d manifests, %v", len(l.Manifests), err)
	}
	for i, desc := range l.Manifests {
		if got := l.Names(desc, written[i].ID); !slices.Equal(got.Tags, written[i].Tags) || len(got.Digests) != 0 {
			t.Errorf("it is called %+v, wanted %v", got, written[i].Tags)
		}
	}
}

// TestALayerIsDigestedOnce lists a layer again and again, in one image and in the next.
func TestALayerIsDigestedOnce(t *testing.T) {
	layers, diffs := strings.Repeat(`"l",`, 9)+`"l"`, strings.Repeat(`"sha256:`+strings.Repeat("a", 64)+`",`, 10)
	config := `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[` + diffs[:len(diffs)-1] + `]}}`
	entry := `{"Config":"c","Layers":[` + layers + `]}`
	var tarred bytes.Buffer
	w := tar.NewWriter(&tarred)
	for name, body := range map[string]string{
		"manifest.json": "[" + entry + "," + entry + "]", "c": config, "l": strings.Repeat("layer", 20<<10),
	} {
		err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body))})
		if _, more := io.WriteString(w, body); err != nil || more != nil {
			t.Fatal(err, more)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	a, err := Read(t.Context(), &tarred, place(t, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	saved, err := a.Saved()
	if err != nil || len(saved) != 2 {
		t.Fatalf("%d images, %v", len(saved), err)
	}
	reads := &asked{Context: t.Context()}
	for i, most := range []int{20, 0} { // 100 KiB are read in fewer pieces than 20
		doc, err := a.Document(reads, limits, saved[i])
		if err != nil || len(doc.Manifest.Layers) != 10 {
			t.Fatalf("%+v, %v", doc, err)
		}
		if reads.n > most {
			t.Errorf("image %d: its layer was read in %d pieces, wanted at most %d", i, reads.n, most)
		}
		reads.n = 0
	}
}

// asked counts how often a context is asked, as it is before each read.
type asked struct {
	context.Context
	n int
}

func (a *asked) Err() error {
	a.n++
	return a.Context.Err()
}

// TestArchiveIsBounded reads no more than the place has room for, and nothing of what is no archive.
func TestArchiveIsBounded(t *testing.T) {
	var out bytes.Buffer
	if err := Write(t.Context(), &out, []*Image{imageOf(t, "r.example/a:v1", unpacked(t, "a"))}, Options{}); err != nil {
		t.Fatal(err)
	}
	raw := out.Bytes()
	if _, err := Read(t.Context(), bytes.NewReader(raw), place(t, 100)); !fail.Is(err, errdefs.ErrResourceExhausted) {
		t.Errorf("larger than there is room for: %v", err)
	}
	_, err := Read(t.Context(), bytes.NewReader(raw[:1000]), place(t, 1<<20))
	if !fail.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("cut short: %v", err)
	}
	err = Write(t.Context(), io.Discard, nil, Options{Format: "zip"})
	if !fail.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("in a form that there is not: %v", err)
	}
}
