package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
)

// small builds an image of a few files on top of nothing.
func (r rig) small(recipe fixture.Recipe, layers ...[]fixture.File) ggcr.Image {
	r.Helper()
	recipe.Layers = layers
	if len(layers) == 0 {
		recipe.Layers = [][]fixture.File{{{Name: "marker", Body: []byte(r.Name())}}}
	}
	img, err := recipe.Build()
	r.ok(err)
	return img
}

func (r rig) push(name string, img ggcr.Image) (byDigest string) {
	r.Helper()
	byDigest, err := onRegistry(r.T).Push(name, img)
	r.ok(err)
	return byDigest
}

func (r rig) image(reference string) *v1.Image {
	r.Helper()
	resp, err := r.n.Images.ImageStatus(ctx(), &v1.ImageSpec{Image: reference}, false)
	r.ok(err)
	return resp.Image
}

func (r rig) tryPull(reference string, auth *v1.AuthConfig) error {
	_, err := r.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: reference}, auth, nil)
	return err
}

// repository makes a repository name for one test and runtime.
func (r rig) repository() string { return "t/" + unique(r.T) }

func TestPull(t *testing.T) {
	each(t, func(r rig) {
		for name, recipe := range map[string]fixture.Recipe{
			"oci-gzip": {}, "oci-zstd": {Compression: fixture.LayerZstd}, "oci-plain": {Compression: fixture.LayerPlain},
			"docker-gzip": {Docker: true}, "docker-plain": {Docker: true, Compression: fixture.LayerPlain},
		} {
			recipe.Config = ggcr.Config{User: "1234:5"}
			img := r.small(recipe, []fixture.File{{Name: "marker", Body: []byte(r.Name() + name)}})
			tag := ref(r.repository() + "-" + name + ":v1")
			byDigest := r.push(strings.TrimPrefix(tag, shared.registry.Addr+"/"), img)
			id, err := r.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: tag}, nil, nil)
			r.ok(err)
			got := r.image(tag)
			if got == nil || got.Id != id || got.Size == 0 || got.Uid.GetValue() != 1234 || got.Pinned {
				r.Fatalf("%s: pulled %s, status %v", name, id, got)
			}
			if strings.Join(got.RepoTags, " ") != tag || strings.Join(got.RepoDigests, " ") != byDigest {
				r.Errorf("%s: tags %v, digests %v; wanted %s, %s", name, got.RepoTags, got.RepoDigests, tag, byDigest)
			}
			config, err := img.ConfigName()
			r.ok(err)
			if !strings.HasSuffix(id, config.Hex) {
				r.Errorf("%s: the image's id is %s, its configuration's digest %s", name, id, config)
			}
			again, err := r.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: byDigest}, nil, nil)
			r.ok(err)
			if again != id {
				r.Errorf("%s: by digest the id is %s, by tag %s", name, again, id)
			}
			for _, reference := range []string{tag, byDigest, id} {
				if s := r.image(reference); s == nil || s.Id != id {
					r.Errorf("%s: status of %s: %v", name, reference, s)
				}
			}
		}
	})
}

func TestPullByPlatform(t *testing.T) {
	each(t, func(r rig) {
		other := r.small(fixture.Recipe{Platform: &ggcr.Platform{OS: "linux", Architecture: "s390x"}})
		mine := r.small(fixture.Recipe{Config: ggcr.Config{User: "77"}})
		index, err := fixture.Index(other, mine)
		r.ok(err)
		name := r.repository() + ":v1"
		_, err = onRegistry(r.T).PushIndex(name, index)
		r.ok(err)
		r.ok(r.tryPull(ref(name), nil))
		if got := r.image(ref(name)); got.GetUid().GetValue() != 77 {
			r.Errorf("the image of another platform was taken: %v", got)
		}
		foreign, err := fixture.Index(other)
		r.ok(err)
		_, err = onRegistry(r.T).PushIndex(r.repository()+":foreign", foreign)
		r.ok(err)
		err = r.tryPull(ref(r.repository()+":foreign"), nil)
		if err == nil || !strings.Contains(err.Error(), "platform") {
			r.Errorf("an index without this platform gave %v", err)
		}
	})
}

func TestListAndRemoveImages(t *testing.T) {
	each(t, func(r rig) {
		img := r.small(fixture.Recipe{})
		one, two := r.repository()+":one", r.repository()+":two"
		r.push(one, img)
		byDigest := r.push(two, img)
		r.ok(r.tryPull(ref(one), nil))
		r.ok(r.tryPull(ref(two), nil))
		got := r.image(ref(one))
		if len(got.RepoTags) != 2 || len(got.RepoDigests) != 1 {
			r.Errorf("two tags of one image: %v %v", got.RepoTags, got.RepoDigests)
		}
		for _, filter := range []string{ref(one), ref(two), byDigest, got.Id} {
			list, err := r.n.Images.ListImages(ctx(), &v1.ImageFilter{Image: &v1.ImageSpec{Image: filter}})
			r.ok(err)
			if len(list) != 1 || list[0].Id != got.Id {
				r.Errorf("list of %s: %v", filter, list)
			}
		}
		all, err := r.n.Images.ListImages(ctx(), nil)
		r.ok(err)
		for _, i := range all {
			if i.Id == "" || i.Size == 0 {
				r.Errorf("incomplete: %v", i)
			}
		}
		r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: got.Id}))
		if s := r.image(ref(two)); s != nil {
			r.Errorf("after removal: %v", s)
		}
		r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: ref(one)})) // again
	})
}

func TestImageInUse(t *testing.T) {
	each(t, func(r rig) {
		name := r.repository() + ":v1"
		recipe, err := fixture.BusyboxRecipe()
		r.ok(err)
		recipe.Layers = append(recipe.Layers, []fixture.File{{Name: "unique", Body: []byte(r.Name())}})
		img, err := recipe.Build()
		r.ok(err)
		r.push(name, img)
		r.ok(r.tryPull(ref(name), nil))
		c := r.pod().start(node.Container("main", ref(name), []string{"sleep", "1000"}))
		_ = r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: ref(name)})
		r.wantText("the file after its image was removed", c.exec("cat", "/unique"), r.Name())
	})
}

func TestImageFsInfo(t *testing.T) {
	each(t, func(r rig) {
		began := time.Now().Add(-time.Hour)
		var got *v1.FilesystemUsage
		r.eventually("the usage is known", func() bool {
			info, err := r.n.Images.ImageFsInfo(ctx())
			r.ok(err)
			if len(info.ImageFilesystems) != 1 || len(info.ContainerFilesystems) != 1 {
				r.Fatalf("info %v", info)
			}
			got = info.ImageFilesystems[0]
			return got.UsedBytes.GetValue() > 1<<20 && got.InodesUsed.GetValue() > 0
		})
		if got.Timestamp < began.UnixNano() {
			r.Errorf("timestamp %d", got.Timestamp)
		}
		if info, err := os.Stat(got.FsId.GetMountpoint()); err != nil || !info.IsDir() {
			r.Errorf("mountpoint %v: %v", got.FsId, err)
		}
	})
}

// TestLayers checks what an image of several layers looks like from inside.
func TestLayers(t *testing.T) {
	each(t, func(r rig) {
		base, err := fixture.BusyboxRecipe()
		r.ok(err)
		layers := append(base.Layers, []fixture.File{
			{Name: "d/"}, {Name: "d/gone", Body: []byte("x")}, {Name: "d/kept", Body: []byte("kept")},
			{Name: "opaque/"}, {Name: "opaque/old", Body: []byte("x")}, {Name: "strict/", Mode: 0o711, UID: 7},
			{Name: "file", Body: []byte("old")}, {Name: "deep/link", Type: '2', Link: "/d"},
		}, []fixture.File{
			{Name: "d/.wh.gone"}, {Name: "opaque/.wh..wh..opq"}, {Name: "opaque/new", Body: []byte("new")},
			{Name: "strict/inside", Body: []byte("x")}, {Name: "file", Body: []byte("new")},
			{Name: "hard", Type: '1', Link: "d/kept"}, {Name: "suid", Mode: 0o4755, Body: []byte("x")},
			{Name: "implicit/parent/file", Body: []byte("deep")}, {Name: ".wh.nothing"},
			{Name: "owned", UID: 1000, GID: 50, Mode: 0o640, Body: []byte("x")},
		})
		img := r.small(fixture.Recipe{Config: base.Config}, layers...)
		name := r.repository() + ":v1"
		r.push(name, img)
		r.ok(r.tryPull(ref(name), nil))
		script := `ls /d; ls /opaque; cat /file; echo; stat -c '%a %u' /strict; cat /hard; echo; stat -c %a /suid
cat /implicit/parent/file; echo; stat -c '%u %g %a' /owned; ls /deep/link; ls -a / | grep -c wh; stat -c %a /tmp`
		got := r.pod().start(node.Container("main", ref(name), []string{"sh", "-c", script}))
		got.finish()
		r.wantText("files", got.text("stdout"),
			"kept\nnew\nnew\n711 7\nkept\n4755\ndeep\n1000 50 640\nkept\n0\n1777")
	})
}

// TestBadImages checks that what lies, or tries to leave its place, is refused by name, and not kept.
func TestBadImages(t *testing.T) {
	each(t, func(r rig) {
		for _, c := range []struct {
			name  string
			file  fixture.File
			trick func(ggcr.Image)
			words []string
		}{
			{"dotdot", fixture.File{Name: "../../../../../../tmp/bt-escaped", Body: []byte("x")}, nil, nil},
			{"absolute", fixture.File{Name: "/../../../../../tmp/bt-escaped", Body: []byte("x")}, nil, nil},
			{"hardlink-out", fixture.File{Name: "h", Type: '1', Link: "../../../../../../../etc/hostname"}, nil, nil},
			{"corrupt-blob", fixture.File{Name: "x", Body: []byte("x")}, corruptLayer, []string{"sha256:"}},
			{"short-blob", fixture.File{Name: "x", Body: []byte(strings.Repeat("x", 9999))}, truncateLayer, nil},
		} {
			img := r.small(fixture.Recipe{}, []fixture.File{{Name: "mark", Body: []byte(r.Name() + c.name)}, c.file})
			name := r.repository() + ":" + c.name
			r.push(name, img)
			if c.trick != nil {
				c.trick(img)
			}
			err := r.tryPull(ref(name), nil)
			if _, e := os.Lstat("/tmp/bt-escaped"); e == nil {
				r.Errorf("%s: a file appeared outside the layer", c.name)
				_ = os.Remove("/tmp/bt-escaped")
			}
			if c.trick == nil && err == nil {
				continue // made safe by staying inside the layer, which is as good
			}
			if err == nil {
				r.Errorf("%s: pulled", c.name)
				continue
			}
			for _, w := range c.words {
				if !strings.Contains(err.Error(), w) {
					r.Errorf("%s: the error does not name %q: %v", c.name, w, err)
				}
			}
			if got := r.image(ref(name)); got != nil {
				r.Errorf("%s: refused and kept: %v", c.name, got)
			}
		}
	})
}

// lyingLayer says of itself what is not so.
type lyingLayer struct {
	ggcr.Layer
	more   int64
	diffID string
}

func (l lyingLayer) Size() (int64, error) {
	size, err := l.Layer.Size()
	return size + l.more, err
}

func (l lyingLayer) DiffID() (ggcr.Hash, error) {
	if l.diffID != "" {
		return ggcr.NewHash(l.diffID)
	}
	return l.Layer.DiffID()
}

// TestRegistryThatLies pulls an image whose manifest or configuration is not true of its layer.
func TestRegistryThatLies(t *testing.T) {
	each(t, func(r rig) {
		for name, lie := range map[string]lyingLayer{
			"larger": {more: 100}, "smaller": {more: -10}, "diff-id": {diffID: "sha256:" + strings.Repeat("ab", 32)},
		} {
			honest := r.small(fixture.Recipe{}, []fixture.File{{Name: "mark", Body: []byte(r.Name() + name)}})
			layers, err := honest.Layers()
			r.ok(err)
			lie.Layer = layers[0]
			base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
			img, err := mutate.AppendLayers(base, lie)
			r.ok(err)
			config, err := img.ConfigFile()
			r.ok(err)
			config.OS, config.Architecture = "linux", fixture.HostPlatform().Architecture
			img, err = mutate.ConfigFile(img, config)
			r.ok(err)
			tag := r.repository() + ":" + name
			r.push(tag, honest) // so that the layer is there, and only the manifest is sent
			r.push(tag, img)
			if err := r.tryPull(ref(tag), nil); err == nil {
				r.Errorf("%s: pulled", name)
			}
			if got := r.image(ref(tag)); got != nil {
				r.Errorf("%s: refused and kept: %v", name, got)
			}
		}
	})
}

// corruptLayer changes a byte of the image's layer in the registry's storage.
func corruptLayer(img ggcr.Image) {
	changeLayer(img, func(data []byte) []byte {
		data[len(data)-1] ^= 0xff
		return data
	})
}

func truncateLayer(img ggcr.Image) {
	changeLayer(img, func(data []byte) []byte { return data[:len(data)/2] })
}

func changeLayer(img ggcr.Image, f func([]byte) []byte) {
	layers, err := img.Layers()
	if err != nil {
		panic(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		panic(err)
	}
	path := shared.registry.BlobPath(digest)
	data, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	if err := os.WriteFile(path, f(data), 0o644); err != nil {
		panic(err)
	}
}

func TestBadReferences(t *testing.T) {
	each(t, func(r rig) {
		for reference, code := range map[string]codes.Code{
			"": codes.InvalidArgument, "lower/UPPER": codes.InvalidArgument, "a b": codes.InvalidArgument,
			ref("busybox@sha256:short"): codes.InvalidArgument, ref("no/such:tag"): codes.NotFound,
		} {
			r.wantCode(r.tryPull(reference, nil), code)
		}
		if got := r.image(ref("no/such:tag")); got != nil {
			r.Errorf("status of an unknown image: %v", got)
		}
		r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: ref("no/such:tag")}))
	})
}

// TestImageWithoutLayers pulls an image of a config alone. A container of it is refused with what to do.
func TestImageWithoutLayers(t *testing.T) {
	each(t, func(r rig) {
		img, err := fixture.Recipe{}.Build()
		r.ok(err)
		r.push("no-layers:latest", img)
		r.pull("no-layers:latest")
		p := r.pod()
		config := busybox("none", "true")
		config.Image = &v1.ImageSpec{Image: ref("no-layers:latest")}
		_, err = r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config)
		r.wantCode(err, codes.InvalidArgument, "has no layers", "build this one with a layer")
	})
}
