package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"

	"berth/internal/image/archive"
	"berth/internal/image/progress"
	"berth/internal/limit"
	"berth/test/timeouts"
)

// ociTar writes images into an OCI layout and tars that.
func ociTar(t *testing.T, names map[string]v1.Image) []byte {
	t.Helper()
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for n, img := range names {
		if err := l.AppendImage(img,
			layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": n})); err != nil {
			t.Fatal(err)
		}
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	return buf.Bytes()
}

func dockerTar(t *testing.T, names map[string]v1.Image) []byte {
	t.Helper()
	tags := map[name.Tag]v1.Image{}
	for n, img := range names {
		tag, err := name.NewTag(n)
		if err != nil {
			t.Fatal(err)
		}
		tags[tag] = img
	}
	var buf bytes.Buffer
	if err := tarball.MultiWrite(tags, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func zipped(b []byte) []byte {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, _ = w.Write(b)
	_ = w.Close()
	return buf.Bytes()
}

func TestImport(t *testing.T) {
	one := imageOf(t, gz(t, file("hello", "one")))
	two := imageOf(t, gz(t, folder("d")), zst(t, file("hello", "two"), file("d/x", "")))
	docker := dockerImage(t, gz(t, file("hello", "one")))
	cases := map[string]struct {
		data []byte
		want map[string]string // name: content of hello
	}{
		"oci": {ociTar(t, map[string]v1.Image{"example.com/one:v1": one}),
			map[string]string{"example.com/one:v1": "one"}},
		"oci gzip": {zipped(ociTar(t, map[string]v1.Image{"one:v1": one, "two:v2": two})),
			map[string]string{"docker.io/library/one:v1": "one", "two:v2": "two"}},
		"oci without name": {ociTar(t, map[string]v1.Image{"latest": one}), map[string]string{idOf(t, one): "one"}},
		"docker": {dockerTar(t, map[string]v1.Image{"example.com/one:v1": docker}),
			map[string]string{"example.com/one:v1": "one"}},
		"docker gzip": {zipped(dockerTar(t, map[string]v1.Image{"one": docker})),
			map[string]string{"one": "one", "one:latest": "one"}},
	}
	for n, c := range cases {
		t.Run(n, func(t *testing.T) {
			s := open(t, t.TempDir())
			imgs, err := s.Import(t.Context(), bytes.NewReader(c.data), func(progress.Event) {})
			if err != nil {
				t.Fatal(err)
			}
			for ref, want := range c.want {
				img, ok := s.Get(ref)
				if !ok || content(t, s, img, "hello") != want || img.Size == 0 {
					t.Errorf("%s: %v %+v", ref, ok, imgs)
				}
			}
			sound(t, s)
		})
	}
}

func idOf(t *testing.T, img v1.Image) string {
	t.Helper()
	h, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func TestImportRefuses(t *testing.T) {
	good := ociTar(t, map[string]v1.Image{"one:v1": imageOf(t, gz(t, file("hello", strings.Repeat("one", 5000))))})
	foreign := editConfig(t, imageOf(t, gz(t, file("a", "1"))), func(cf *v1.ConfigFile) { cf.Architecture = "s390x" })
	flipped := bytes.Clone(good)
	flipped[bytes.Index(flipped, []byte{0x1f, 0x8b})+40] ^= 1
	var many []entry
	for i := range limit.ArchiveNames.Limit/4000 + 1 {
		many = append(many, aFile(fmt.Sprint(i, strings.Repeat("n", 4000)), ""))
	}
	tags := strings.Repeat(`"a:1",`, int(limit.ArchiveImages.Limit))
	list := func(n int64, of string) string { return strings.Repeat(of+",", int(n)) + of }
	config := `{"rootfs":{"diff_ids":[]},"config":{"Labels":{"a":"` + strings.Repeat("a", 1<<20-100) + `"}}}`
	cases := map[string]struct {
		data []byte
		kind error
	}{
		"many values": {tarOf(t, file("index.json", `{"manifests":[`+list(limit.DocumentValues.Limit/2, "{}")+`]}`)),
			errdefs.ErrResourceExhausted},
		"many images": {tarOf(t, file("index.json", `{"manifests":[`+list(limit.ArchiveImages.Limit, "{}")+`]}`)),
			errdefs.ErrResourceExhausted},
		"many tags": {tarOf(t, file("manifest.json", `[{"RepoTags":[`+tags+`"a:1"]}]`)), errdefs.ErrResourceExhausted},
		"many tags beside": {tarOf(t, file("index.json", `{"manifests":[]}`), file("manifest.json",
			`[{"RepoTags":[`+tags+`"a:1"]}]`)), errdefs.ErrResourceExhausted},
		"one config again and again": {tarOf(t, file("c", config), file("manifest.json",
			"["+list(limit.Documents.Limit>>20, `{"Config":"c"}`)+"]")), errdefs.ErrResourceExhausted},
		"a long name": {tarOf(t, aFile(strings.Repeat("n", 5000), "")), errdefs.ErrResourceExhausted},
		"a long link": {tarOf(t, aSymlink("l", strings.Repeat("n", 5000))), errdefs.ErrResourceExhausted},
		"many names":  {tarOf(t, many...), errdefs.ErrResourceExhausted},
		"empty":       {nil, errdefs.ErrInvalidArgument},
		"no tar":      {[]byte(strings.Repeat("no tar", 200)), errdefs.ErrInvalidArgument},
		"cut short":   {good[:len(good)/2], errdefs.ErrInvalidArgument},
		"no image":    {tarOf(t, file("README", "hi")), errdefs.ErrInvalidArgument},
		"bad index":   {tarOf(t, file("index.json", "{")), errdefs.ErrInvalidArgument},
		"bad list":    {tarOf(t, file("manifest.json", `[{"Config":"c","Layers":["l"]}]`)), errdefs.ErrInvalidArgument},
		"a blob lies": {flipped, errdefs.ErrDataLoss},
		"lost blob": {
			tarOf(t,
				file("index.json", `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:`+
					strings.Repeat("a", 64)+`","size":3}]}`)), errdefs.ErrInvalidArgument},
		"link loop": {tarOf(t, entry{Header: tar.Header{Name: "index.json", Typeflag: tar.TypeSymlink,
			Linkname: "index.json"}}), errdefs.ErrInvalidArgument},
	}
	for n, c := range cases {
		t.Run(n, func(t *testing.T) {
			s := open(t, t.TempDir())
			_, err := s.Import(t.Context(), bytes.NewReader(c.data), nil)
			if kindOf(err) != c.kind {
				t.Errorf("kind %v: %v; want kind %v", kindOf(err), err, c.kind)
			}
			if len(s.List()) != 0 {
				t.Error("an image is listed")
			}
			sound(t, s)
		})
	}
	s := open(t, t.TempDir())
	if _, err := s.Import(t.Context(), bytes.NewReader(ociTar(t, map[string]v1.Image{"x:v1": foreign})), nil); err != nil {
		t.Errorf("a lone image is taken for what it is: %v", err)
	}
	if _, err := s.Import(t.Context(), &breaks{bytes.NewReader(good[:4096])}, nil); err == nil {
		t.Error("a stream that broke off was taken")
	}
	sound(t, s)
}

// TestImportKeepsNoDocuments lists an image whose config becomes megabytes of structures under many names. What is
// found in the archive is kept until all of it is admitted.
func TestImportKeepsNoDocuments(t *testing.T) {
	const entries, most = 40, 30 << 20
	img := editConfig(t, imageOf(t, gz(t, file("a", "1"))), func(cf *v1.ConfigFile) {
		for i := range 60_000 {
			cf.Config.Env = append(cf.Config.Env, fmt.Sprint("e", i, "="))
		}
	})
	tags := map[string]v1.Image{}
	for i := range entries {
		tags[fmt.Sprint("example.com/a:v", i)] = img
	}
	s := open(t, t.TempDir())
	for form, data := range map[string][]byte{"layout": ociTar(t, tags), "docker's": dockerTar(t, tags)} {
		dir := t.TempDir()
		a, err := archive.Read(t.Context(), bytes.NewReader(data), archive.Place{
			Dir: dir, Disk: gauge(s.pipeline), Bytes: limit.ArchiveBytes.At(1 << 30),
			Document: limit.ArchiveDocument.At(4 << 20), Documents: limit.Documents,
		})
		if err != nil {
			t.Fatal(err)
		}
		before := heap()
		found, err := imagesIn(t.Context(), s.pipeline, archiveSource{a})
		if err != nil {
			t.Fatal(err)
		}
		if grown := heap() - before; grown > most {
			t.Errorf("%s: %d entries are kept in %d bytes, wanted at most %d", form, len(found), grown, most)
		}
		if one := once(found); len(one) != 1 || len(one[0].names.tags) != entries {
			t.Errorf("%s: %d images", form, len(one))
		}
	}
}

// heap returns how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

type breaks struct{ r io.Reader }

func (b *breaks) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// TestDockerArchiveWithLinks reads the older form, in which a layer that repeats is a symlink to the first.
func TestDockerArchiveWithLinks(t *testing.T) {
	layer := gz(t, file("hello", "linked"))
	img, err := mutate.AppendLayers(empty.Image, layer, layer)
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := img.RawConfigFile()
	data := tarOf(t,
		file("cfg.json", string(raw)), folder("a"), file("a/layer.tar", string(layer.plain)), folder("b"),
		entry{Header: tar.Header{Name: "b/layer.tar", Typeflag: tar.TypeSymlink, Linkname: "../a/layer.tar"}},
		file("manifest.json", `[{"Config":"cfg.json","RepoTags":["linked:v1"],"Layers":["a/layer.tar","b/layer.tar"]}]`))
	s := open(t, filepath.Join(t.TempDir(), "deep", "root"))
	if _, err := s.Import(t.Context(), bytes.NewReader(data), nil); err != nil {
		t.Fatal(err)
	}
	got, _ := s.Get("linked:v1")
	if len(got.Layers) != 2 || content(t, s, got, "hello") != "linked" || len(got.RepoDigests) != 0 {
		t.Errorf("%+v", got)
	}
	sound(t, s)
}

// TestImportTakesTheLastOfAName reads an archive that was appended to: it has names twice.
func TestImportTakesTheLastOfAName(t *testing.T) {
	layer := gz(t, file("hello", "one"))
	raw, err := imageOf(t, layer).RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	data := tarOf(t, file("layer.tar", "stale"), file("layer.tar", string(layer.plain)), file("cfg.json", "stale"),
		file("cfg.json", string(raw)),
		file("manifest.json", `[]`),
		file("manifest.json", `[{"Config":"cfg.json","RepoTags":["twice:v1"],"Layers":["layer.tar"]}]`))
	s := open(t, t.TempDir())
	if _, err := s.Import(t.Context(), bytes.NewReader(data), nil); err != nil {
		t.Fatal(err)
	}
	if img, ok := s.Get("twice:v1"); !ok || content(t, s, img, "hello") != "one" {
		t.Errorf("%v %+v", ok, img)
	}
	sound(t, s)
}

// halting gives the beginning of an archive, and the rest when it is told to.
type halting struct {
	begin  io.Reader
	halted chan struct{} // closed when all of begin was given
	goOn   chan struct{}
	rest   io.Reader
	once   sync.Once
}

func (h *halting) Read(p []byte) (int, error) {
	if n, err := h.begin.Read(p); n > 0 || err != io.EOF {
		return n, err
	}
	h.once.Do(func() { close(h.halted) })
	<-h.goOn
	return h.rest.Read(p)
}

// TestSlowImportHoldsNoWindow imports an archive that needs the largest zstd window from a client that stops in the
// middle: a pull of a layer that needs as much does not wait for it, and the import succeeds when the client goes on.
func TestSlowImportHoldsNoWindow(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/fast:v1", imageOf(t, wide(t, "fast", 1<<20)))
	archive := ociTar(t, map[string]v1.Image{"example.com/slow:v1": imageOf(t, noisy(t, "slow", 3<<20))})
	packed := part(func(w io.Writer) io.WriteCloser {
		z, err := zstd.NewWriter(w, zstd.WithWindowSize(128<<20), zstd.WithSingleSegment(false))
		if err != nil {
			t.Fatal(err)
		}
		return z
	}, archive)
	client := &halting{begin: bytes.NewReader(packed[:1<<20]), halted: make(chan struct{}), goOn: make(chan struct{}),
		rest: bytes.NewReader(packed[1<<20:])}
	s := open(t, t.TempDir())
	imported := make(chan error)
	go func() {
		_, err := s.Import(t.Context(), client, nil)
		imported <- err
	}()
	<-client.halted
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
	defer cancel()
	if _, err := s.Pull(ctx, PullRequest{Reference: host + "/fast:v1"}); err != nil {
		t.Errorf("the pull beside it: %v", err)
	}
	close(client.goOn)
	if err := <-imported; err != nil {
		t.Fatal(err)
	}
	img, _ := s.Get("example.com/slow:v1")
	if got := content(t, s, img, "slow"); len(got) != 3<<20 {
		t.Errorf("the imported file has %d bytes", len(got))
	}
	sound(t, s)
	nothingInFlight(t, s)
}
