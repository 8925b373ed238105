package image

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/archive"
	"berth/internal/image/catalog"
	"berth/internal/image/layer"
	"berth/test/fixture"
)

// titled is a blob that is a file.
func titled(title, body string) fixture.ArtifactBlob {
	return fixture.ArtifactBlob{Title: title, Body: []byte(body)}
}

// modelOf is an artifact of files, with the empty config.
func modelOf(blobs ...fixture.ArtifactBlob) fixture.Artifact {
	return fixture.Artifact{Type: "application/vnd.example.model", Blobs: blobs}
}

// pushArtifact uploads an artifact and returns its reference.
func pushArtifact(t testing.TB, host, name string, a fixture.Artifact) string {
	t.Helper()
	if _, err := a.Push(host, name); err != nil {
		t.Fatal(err)
	}
	return host + "/" + name
}

// eachCrew runs a test with layers that the daemon unpacks, and with layers that confined processes unpack.
func eachCrew(t *testing.T, test func(t *testing.T, crew func(*Config))) {
	t.Helper()
	t.Run("here", func(t *testing.T) { test(t, withCrew(nil)) })
	t.Run("confined", func(t *testing.T) { test(t, withCrew(testCrew())) })
}

// TestArtifactFiles has blobs of all kinds become the files of a volume, each under its name.
func TestArtifactFiles(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	big := strings.Repeat("0123456789abcdef", 400_000)
	untitled := fixture.ArtifactBlob{Body: []byte("has no title")}
	model := fixture.ArtifactBlob{Body: []byte("by its path"),
		Annotations: map[string]string{"org.cncf.model.filepath": "cnai/weights"}}
	packed := gz(t, folder("tree"), file("tree/leaf", "unpacked"))
	plain := plainLayer(t, file("fromtar", "unpacked, too"))
	a := modelOf(
		titled("config.json", `{"a":1}`), titled("weights/model.bin", big), titled("weights/empty", ""), untitled, model,
		fixture.ArtifactBlob{MediaType: ocispec.MediaTypeImageLayerGzip, Title: "tree", Body: packed.blob},
		fixture.ArtifactBlob{MediaType: ocispec.MediaTypeImageLayer, Title: "note.txt",
			Body: []byte("as ORAS pushes a file")},
		fixture.ArtifactBlob{MediaType: ocispec.MediaTypeImageLayer, Title: "some.tar", Body: plain.blob},
		fixture.ArtifactBlob{MediaType: ocispec.MediaTypeImageLayer, Title: "chart.tgz", Body: packed.blob},
		fixture.ArtifactBlob{MediaType: "application/vnd.cncf.helm.chart.content.v1.tar+gzip", Title: "chart",
			Body: packed.blob},
		titled("ünïcode "+strings.Repeat("n", 120)+"/"+strings.Repeat("m", 200), "a long name"), titled("./here", "dot"),
	)
	ref := pushArtifact(t, host, "model:v1", a)
	eachCrew(t, func(t *testing.T, crew func(*Config)) {
		root := t.TempDir()
		s := open(t, root, crew)
		img := pull(t, s, ref)
		check := func() {
			t.Helper()
			if img.ID != a.Digest().String() || img.Artifact != a.Type || img.Platform != "" || img.Size < uint64(len(big)) {
				t.Errorf("the artifact is %+v", img)
			}
			for path, want := range map[string]string{
				"config.json": `{"a":1}`, "weights/model.bin": big, digest.FromString("has no title").Encoded(): "has no title",
				"cnai/weights": "by its path", "tree/leaf": "unpacked", "note.txt": "as ORAS pushes a file",
				"fromtar": "unpacked, too", "chart.tgz": string(packed.blob), "chart": string(packed.blob),
				"ünïcode " + strings.Repeat("n", 120) + "/" + strings.Repeat("m", 200): "a long name", "here": "dot",
			} {
				if got := content(t, s, img, path); got != want {
					t.Errorf("%s has %d bytes, not the %d pushed", path, len(got), len(want))
				}
			}
			if st, err := os.Stat(filepath.Join(s.disk.LayerFS(img.Layers[2]), "weights/empty")); err != nil || st.Size() != 0 ||
				st.Mode() != 0o444 {
				t.Errorf("the empty file: %v, %v", st, err)
			}
			if len(s.LayerDirs(img)) != len(a.Blobs) {
				t.Errorf("%d layers, of %d blobs", len(s.LayerDirs(img)), len(a.Blobs))
			}
			sound(t, s)
		}
		check()
		fetched := Fetched(s)
		if again := pull(t, s, ref); again.ID != img.ID || Fetched(s) != fetched {
			t.Errorf("a second pull fetched %d bytes", Fetched(s)-fetched)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, root, crew)
		found, ok := s.Get(ref)
		if img = found; !ok {
			t.Fatal("it is gone after a restart")
		}
		check()
		if err := s.Remove(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if n := layersOnDisk(t, s); n != 0 || len(s.List()) != 0 {
			t.Errorf("%d layers are left", n)
		}
	})
}

// TestArtifactsShareAConfig has two artifacts with the config {}, and one of them removed.
func TestArtifactsShareAConfig(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	one, two := modelOf(titled("a", "one")), modelOf(titled("a", "two"), titled("b", "one"))
	refOne, refTwo := pushArtifact(t, host, "one:v1", one), pushArtifact(t, host, "two:v1", two)
	root := t.TempDir()
	s := open(t, root)
	first, second := pull(t, s, refOne), pull(t, s, refTwo)
	if first.ID == second.ID || len(s.List()) != 2 {
		t.Fatalf("two artifacts with one config are %s and %s", first.ID, second.ID)
	}
	if err := s.Remove(t.Context(), refOne); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	s = open(t, root)
	if _, there := s.Get(refOne); there {
		t.Error("the removed one is there")
	}
	img, there := s.Get(refTwo)
	if !there || content(t, s, img, "a") != "two" || content(t, s, img, "b") != "one" {
		t.Errorf("the other one: %v, %+v", there, img)
	}
	sound(t, s)
}

// TestOneBlobTwoTitles has the same blob under two names in two artifacts, and once as a layer of an image.
func TestOneBlobTwoTitles(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	l := gz(t, file("in", "the tar"))
	body := string(l.blob)
	push(t, host+"/app:v1", imageOf(t, l))
	x, y := pushArtifact(t, host, "m:x", modelOf(titled("x", body))),
		pushArtifact(t, host, "m:y", modelOf(titled("y", body)))
	both := pushArtifact(t, host, "m:both", modelOf(titled("y", body), titled("x", body)))
	s := open(t, t.TempDir())
	for _, c := range []struct{ ref, path, want string }{
		{x, "x", body}, {y, "y", body}, {both, "x", body}, {both, "y", body}, {x, "y", ""},
		{host + "/app:v1", "in", "the tar"},
	} {
		if got := content(t, s, pull(t, s, c.ref), c.path); got != c.want {
			t.Errorf("%s: %s has %d bytes, wanted %d", c.ref, c.path, len(got), len(c.want))
		}
	}
	sound(t, s)
}

// TestHostileTitles has layers called what no file of a volume may be called.
func TestHostileTitles(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	s := open(t, t.TempDir())
	for i, c := range []struct {
		words  string
		titles []string
	}{
		{"leads out of the volume", []string{".."}}, {"leads out of the volume", []string{"../x"}},
		{"leads out of the volume", []string{"a/../../x"}}, {"leads out of the volume", []string{"a/.."}},
		{"absolute path", []string{"/etc/passwd"}}, {"absolute path", []string{"//x"}},
		{"names no file", []string{"."}}, {"names no file", []string{"./"}},
		{"delete files", []string{".wh.x"}}, {"delete files", []string{"a/.wh..wh..opq"}},
		{"delete files", []string{".wh.a/b"}},
		{"control characters", []string{"a\x00b"}}, {"control characters", []string{"a\x1b[2Jb"}},
		{"control characters", []string{"a\n"}},
		{"longer than 255 bytes", []string{strings.Repeat("n", 256)}},
		{"longer than 4095 bytes", []string{strings.Repeat(strings.Repeat("n", 250)+"/", 17) + "n"}},
		{"more than the 64 allowed", []string{strings.Repeat("d/", 64) + "f"}},
		{"called the same", []string{"a", "a"}}, {"called the same", []string{"a/b", "./a//b"}},
		{"as a directory", []string{"a/b", "a"}}, {"as a file", []string{"a", "a/b/c"}},
	} {
		var a fixture.Artifact
		for n, title := range c.titles {
			a.Blobs = append(a.Blobs, titled(title, fmt.Sprint(n)))
		}
		ref := pushArtifact(t, host, fmt.Sprintf("hostile:v%d", i), a)
		_, err := s.Pull(t.Context(), PullRequest{Reference: ref})
		if kindOf(err) != errdefs.ErrFailedPrecondition || !strings.Contains(fmt.Sprint(err), c.words) {
			t.Errorf("%.40q: %v, wanted %q", c.titles, err, c.words)
		}
	}
	if n := layersOnDisk(t, s); n != 0 || len(s.List()) != 0 {
		t.Errorf("%d layers and %d artifacts are there", n, len(s.List()))
	}
	sound(t, s)
}

// TestArtifactProof has a registry send other blobs than the manifest promises.
func TestArtifactProof(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	blob := titled("a", strings.Repeat("hello", 1000))
	ref := pushArtifact(t, host, "x:v1", modelOf(blob))
	name := blob.Descriptor().Digest.String()
	for what, sent := range map[string][]byte{
		"flipped": append(bytes.Repeat([]byte("hello"), 999), "hellp"...), "short": blob.Body[:20], "empty": nil,
		"long": append(bytes.Clone(blob.Body), "more"...), "a whole tar": plainLayer(t, file("a", "another")).blob,
	} {
		t.Run(what, func(t *testing.T) {
			eachCrew(t, func(t *testing.T, crew func(*Config)) {
				p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					if strings.HasSuffix(r.URL.Path, name) {
						w.Header().Set("Content-Length", strconv.Itoa(len(sent)))
						_, _ = w.Write(sent)
						return
					}
					next.ServeHTTP(w, r)
				})
				s := open(t, t.TempDir(), crew)
				_, err := s.Pull(t.Context(), PullRequest{Reference: strings.Replace(ref, host, p.host, 1)})
				if kindOf(err) != errdefs.ErrDataLoss || len(s.List()) != 0 {
					t.Errorf("%v; %d artifacts are listed", err, len(s.List()))
				}
				swept(t, s)
				sound(t, s)
			})
		})
	}
}

// TestArtifactLimits has artifacts that are larger than what is allowed of images.
func TestArtifactLimits(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	ref := pushArtifact(t, host, "big:v1", fixture.Artifact{
		ConfigType: "application/vnd.example.config", Config: []byte(`{"a":"long config"}`),
		Blobs: []fixture.ArtifactBlob{titled("a", strings.Repeat("x", 1<<20)), titled("b", ""), titled("c", "")},
	})
	for words, change := range map[string]func(*Config){
		"layers of an image: 3":     func(c *Config) { c.MaxLayers = 2 },
		"size of an image config":   func(c *Config) { c.MaxConfigBytes = 10 },
		"size of the layers":        func(c *Config) { c.MaxImageBytes = 1 << 19 },
		"size of an unpacked layer": func(c *Config) { c.MaxLayerBytes = 1 << 19 },
	} {
		s := open(t, t.TempDir(), change)
		_, err := s.Pull(t.Context(), PullRequest{Reference: ref})
		if kindOf(err) != errdefs.ErrResourceExhausted || !strings.Contains(fmt.Sprint(err), words) {
			t.Errorf("%q: %v", words, err)
		}
		swept(t, s)
	}
}

// TestArtifactArchive saves an artifact and loads it elsewhere.
func TestArtifactArchive(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	a := modelOf(
		titled("a", strings.Repeat("a", 1000)), titled("d/e", ""), titled("d/f", strings.Repeat("f", 512)),
		fixture.ArtifactBlob{MediaType: ocispec.MediaTypeImageLayer, Body: plainLayer(t, file("t", "of a tar")).blob},
		fixture.ArtifactBlob{MediaType: ocispec.MediaTypeImageLayer, Title: "n", Body: []byte("no tar")},
	)
	a.ConfigType, a.Config = "application/vnd.example.config", []byte(`{"layers":12}`)
	ref := pushArtifact(t, host, "m:v1", a)
	other := pushArtifact(t, host, "m:v2", modelOf(titled("a", strings.Repeat("a", 1000))))
	image := host + "/app:v1"
	push(t, image, imageOf(t, gz(t, file("hello", "one"))))
	s := open(t, t.TempDir())
	for _, one := range []string{ref, other, image} {
		pull(t, s, one)
	}
	for _, compress := range []bool{false, true} {
		data := exportTo(t, s, ExportRequest{Images: []string{ref, other, image}, Compress: compress})
		to := open(t, t.TempDir())
		got, err := to.Import(t.Context(), bytes.NewReader(data), nil)
		if err != nil || len(got) != 3 {
			t.Fatalf("%v, %v", got, err)
		}
		img, _ := to.Get(ref)
		if img.ID != a.Digest().String() || img.Artifact != a.Type || content(t, to, img, "a") != strings.Repeat("a", 1000) ||
			content(t, to, img, "d/f") != strings.Repeat("f", 512) || content(t, to, img, "t") != "of a tar" ||
			content(t, to, img, "n") != "no tar" {
			t.Errorf("loaded as %+v", img)
		}
		if again := exportTo(t, to, ExportRequest{Images: []string{ref, other, image}, Compress: compress}); !bytes.Equal(
			again, data) {
			t.Error("saved again it is another archive")
		}
		sound(t, to)
	}
	var out bytes.Buffer
	err := s.Export(t.Context(), ExportRequest{Images: []string{ref}, Format: archive.FormatDocker}, &out)
	if kindOf(err) != errdefs.ErrInvalidArgument || out.Len() > 0 {
		t.Errorf("in docker's form: %v", err)
	}
	packed := modelOf(fixture.ArtifactBlob{MediaType: ocispec.MediaTypeImageLayerGzip, Body: gz(t, file("z", "z")).blob})
	zipped := pushArtifact(t, host, "m:v3", packed)
	pull(t, s, zipped)
	err = s.Export(t.Context(), ExportRequest{Images: []string{zipped}}, &out)
	if kindOf(err) != errdefs.ErrFailedPrecondition || !strings.Contains(fmt.Sprint(err), "compressed") || out.Len() > 0 {
		t.Errorf("with a compressed layer: %v", err)
	}
	img, _ := s.Get(ref)
	spoilFile(t, filepath.Join(s.disk.LayerFS(img.Layers[0]), "a"))
	if err := s.Export(t.Context(), ExportRequest{Images: []string{ref}}, &out); kindOf(err) != errdefs.ErrDataLoss {
		t.Errorf("with a file that has changed: %v", err)
	}
}

// TestArtifactOfAnEarlierRelease has a record that an earlier release has written anew, without the artifact's config.
func TestArtifactOfAnEarlierRelease(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	own := modelOf(titled("a", "1"))
	own.ConfigType, own.Config = "application/vnd.example.config", []byte(`{"a":1}`)
	empty := pushArtifact(t, host, "m:empty", modelOf(titled("a", "1")))
	root, refs := t.TempDir(), []string{empty, pushArtifact(t, host, "m:own", own)}
	s := open(t, root)
	var imgs []Image
	for _, ref := range refs {
		imgs = append(imgs, pull(t, s, ref))
	}
	_ = s.Close() // its syncer writes records, too
	for _, img := range imgs {
		var rec catalog.ImageRecord
		if _, err := catalog.ImageKind.Read(s.disk.RecordPath(img.ID), &rec); err != nil || rec.ArtifactConfig == nil {
			t.Fatal(err, rec)
		}
		rec.ArtifactConfig = nil
		if err := catalog.ImageKind.Write(s.disk.RecordPath(img.ID), rec); err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, root)
	for _, ref := range refs {
		img, ok := s.Get(ref)
		if !ok || img.Artifact != "application/vnd.example.model" || content(t, s, img, "a") != "1" {
			t.Errorf("%s is %+v", ref, img)
		}
		err := s.Export(t.Context(), ExportRequest{Images: []string{ref}}, &bytes.Buffer{})
		if ref == empty && err != nil || ref != empty && !strings.Contains(fmt.Sprint(err), "pull it again") {
			t.Errorf("%s is exported with %v", ref, err)
		}
	}
	sound(t, s)
}

// spoilFile changes a byte of a file, and nothing that stat shows.
func spoilFile(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	st, _ := os.Stat(path)
	raw[0] ^= 1
	if err := os.WriteFile(path, raw, 0); err != nil {
		t.Fatal(err)
	}
	_ = os.Chtimes(path, st.ModTime(), st.ModTime())
}

// TestArtifactRepair has files of an artifact changed on the disk, and fetched again.
func TestArtifactRepair(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	ref := pushArtifact(t, host, "m:v1", modelOf(
		titled("a", "first"), titled("d/b", "second"),
		fixture.ArtifactBlob{MediaType: ocispec.MediaTypeImageLayerGzip, Body: gz(t, folder("d"), file("d/c", "third")).blob},
	))
	eachCrew(t, func(t *testing.T, crew func(*Config)) {
		s := open(t, t.TempDir(), crew)
		img := pull(t, s, ref)
		for i, path := range []string{"a", "d/b", "d/c"} {
			spoilFile(t, filepath.Join(s.disk.LayerFS(img.Layers[i]), path))
		}
		found := 0
		if err := s.Check(t.Context(), true, func(f Finding) {
			if found++; !f.Repaired || f.Image != img.ID {
				t.Errorf("%+v", f)
			}
		}); err != nil || found < 3 {
			t.Errorf("%d found, %v", found, err)
		}
		if content(t, s, img, "a") != "first" || content(t, s, img, "d/b") != "second" ||
			content(t, s, img, "d/c") != "third" {
			t.Error("not as it was")
		}
		sound(t, s)
	})
}

// TestManifestThatIsAConfig has one document that is the manifest of an artifact and the config of an image.
func TestManifestThatIsAConfig(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	a := titled("f", "of the artifact")
	for _, b := range [][]byte{[]byte("{}"), a.Body} {
		if err := fixture.PushBlob(host, "x", b); err != nil {
			t.Fatal(err)
		}
	}
	d := a.Descriptor()
	both := fmt.Sprintf(
		`{"schemaVersion":2,"mediaType":%q,"artifactType":"a/b","config":{"mediaType":%q,"digest":%q,"size":2},`+
			`"layers":[{"mediaType":%q,"digest":%q,"size":%d,"annotations":{"org.opencontainers.image.title":"f"}}],`+
			`"os":"linux","architecture":"amd64"}`, ocispec.MediaTypeImageManifest, ocispec.MediaTypeEmptyJSON,
		digest.FromString("{}"), d.MediaType, d.Digest, d.Size)
	image := fmt.Sprintf(
		`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":%d},"layers":[]}`,
		ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageConfig, digest.FromString(both), len(both))
	runs := strings.Replace(both, `"size":2}`, `"size":2,"Cmd":["/f"]}`, 1)
	full := strings.Replace(both, `"os":`, `"rootfs":{"type":"layers","diff_ids":[]},"os":`, 1)
	bad := strings.Replace(both, `"os":`, `"rootfs":1,"os":`, 1)
	docs := []struct{ tag, text string }{ // the image has the artifact's for its config
		{"artifact", both}, {"image", image}, {"runs", runs}, {"full", full}, {"bad", bad},
	}
	for _, doc := range docs {
		if err := fixture.PushBlob(host, "x", []byte(doc.text)); err != nil {
			t.Fatal(err)
		}
		if err := fixture.PushManifest(host, "x", doc.tag, ocispec.MediaTypeImageManifest, []byte(doc.text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tag := range []string{"runs", "full", "bad"} {
		refused(t, open(t, t.TempDir()), PullRequest{Reference: host + "/x:" + tag}, errdefs.ErrFailedPrecondition,
			"could be taken for one")
	}
	for _, order := range [][]string{{"artifact", "image"}, {"image", "artifact"}} {
		s := open(t, t.TempDir())
		first := pull(t, s, host+"/x:"+order[0])
		for range 2 {
			_, err := s.Pull(t.Context(), PullRequest{Reference: host + "/x:" + order[1]})
			if kindOf(err) != errdefs.ErrFailedPrecondition || !strings.Contains(fmt.Sprint(err), "remove that first") {
				t.Errorf("%s: %v", order, err)
			}
		}
		if now, _ := s.Get(first.ID); now.Artifact != first.Artifact || len(now.Layers) != len(first.Layers) {
			t.Errorf("%s: the first is %+v now", order, now)
		}
		sound(t, s)
	}
}

// TestArtifactAndImageShareALayer has the same tar in an image, in one whose config lies about it, and in an artifact,
// pulled at the same time. The lie is found out.
func TestArtifactAndImageShareALayer(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	l := gz(t, file("a", strings.Repeat("a", 1<<20)))
	push(t, host+"/x:image", imageOf(t, l))
	push(t, host+"/x:lie", wrongDiffID(t, l))
	pushArtifact(t, host, "x:artifact",
		modelOf(fixture.ArtifactBlob{MediaType: ocispec.MediaTypeImageLayerGzip, Body: l.blob}))
	s := open(t, t.TempDir())
	for _, first := range []string{"artifact", "image"} { // one after the other, the lie is found out as well
		pull(t, s, host+"/x:"+first)
		if _, err := s.Pull(t.Context(), PullRequest{Reference: host + "/x:lie"}); kindOf(err) != errdefs.ErrDataLoss {
			t.Errorf("after the %s: %v", first, err)
		}
	}
	for range 5 {
		s := open(t, t.TempDir())
		errs := map[string]chan error{"image": make(chan error, 1), "lie": make(chan error, 1),
			"artifact": make(chan error, 1)}
		for tag, to := range errs {
			go func() {
				_, err := s.Pull(t.Context(), PullRequest{Reference: host + "/x:" + tag})
				to <- err
			}()
		}
		for tag, from := range errs {
			if err := <-from; (err != nil) != (tag == "lie") {
				t.Errorf("%s: %v", tag, err)
			}
		}
		if n := layersOnDisk(t, s); n != 1 {
			t.Errorf("%d layers of one blob", n)
		}
		sound(t, s)
	}
}

// TestFileTar pins the tar around a file: its digest is the diff id on every node, of every release.
func TestFileTar(t *testing.T) {
	for _, c := range []struct {
		path, body string
		want       digest.Digest
	}{
		{"a", "", "sha256:d0027b448fe34b2b5511f39965a1773f284c0b9a02339d72fc340e7942918739"},
		{"d/e/ü", strings.Repeat("x", 512), "sha256:44e2b4c6d8a2edaa9f0243db692659d4c64f1d3989ab4b3a741670129851caea"},
		{strings.Repeat("n", 200) + "/" + strings.Repeat("m", 200), "x",
			"sha256:a38069f40cce6b04f5ebe618cef0bdfdc44b31fcae2c68943e61d42ffd79f133"},
	} {
		begin, end, err := tarAround(c.path, int64(len(c.body)))
		if err != nil {
			t.Fatal(err)
		}
		all := append(append(begin, c.body...), end...)
		if got := digest.FromBytes(all); got != c.want {
			t.Errorf("%.20s: %s", c.path, got)
		}
		res, err := layer.Unpack(t.Context(), bytes.NewReader(all), t.TempDir(), layer.Limits{})
		if err != nil || !res.Independent() {
			t.Errorf("%.20s: %v, it depends on layers below: %v", c.path, err, !res.Independent())
		}
	}
	if begin, _, err := tarAround("huge", 1<<40); err != nil || len(begin)%tarBlock != 0 {
		t.Errorf("a file of a TiB: %v", err)
	}
}
