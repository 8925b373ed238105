package image

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/limit"
)

// manyHistories is a config of some MiB that is a history of nothing.
func manyHistories(entries int) []byte {
	return []byte(`{"architecture":"amd64","os":"linux","config":{"User":"7"},"rootfs":{"type":"layers","diff_ids":[]},` +
		nothings("history", entries) + "}")
}

// manyDescriptors is a manifest of some MiB whose layers or manifests are nothing.
func manyDescriptors(list string, entries int) []byte {
	return []byte(`{"schemaVersion":2,` + nothings(list, entries) + "}")
}

// nothings is a list of empty objects.
func nothings(list string, entries int) string {
	return `"` + list + `":[` + strings.TrimSuffix(strings.Repeat("{},", entries), ",") + "]"
}

// TestHostileDocuments reads documents of millions of small values, each in a process of its own, which must not need
// much more memory than the document has bytes.
func TestHostileDocuments(t *testing.T) {
	for _, name := range []string{"config", "manifest", "index"} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestHostileDocument$", "-test.v")
			cmd.Env = append(os.Environ(), "HOSTILE_DOCUMENT="+name)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, line := range strings.Split(string(out), "\n") {
				var mib int
				if n, _ := fmt.Sscanf(line, "peak %d MiB", &mib); n == 1 && mib > 48 {
					t.Errorf("the peak of memory is %d MiB above what there was before", mib)
				} else if n == 1 {
					return
				}
			}
			t.Errorf("it says nothing: %s", out)
		})
	}
}

func TestHostileDocument(t *testing.T) {
	s := newTestSource(t)
	c := chooserOf(t, s.blobs, "linux/amd64")
	now := *c.store.settings()
	now.MaxConfigBytes = 8 << 20 // as somebody may have it in the configuration
	c.store.current.settings.Store(&now)
	var from ocispec.Descriptor
	switch os.Getenv("HOSTILE_DOCUMENT") {
	case "config":
		config := s.put(ocispec.MediaTypeImageConfig, manyHistories(2_500_000))
		from = s.manifest(func(m *ocispec.Manifest) { m.Config = config })
	case "manifest":
		from = s.put(ocispec.MediaTypeImageManifest, manyDescriptors("layers", 1_300_000))
	case "index":
		from = s.put(ocispec.MediaTypeImageIndex, manyDescriptors("manifests", 1_300_000))
	default:
		t.Skip("it is the child of TestHostileDocuments")
	}
	runtime.GC()
	before := peak("VmRSS:")
	found, err := c.choose(t.Context(), from)
	fmt.Printf("\npeak %d MiB\n", (peak("VmHWM:")-before)/1024)
	if os.Getenv("HOSTILE_DOCUMENT") != "config" {
		if kindOf(err) != errdefs.ErrResourceExhausted || !strings.Contains(err.Error(), "values") {
			t.Error(err)
		}
		return
	}
	if err != nil || found.doc.Config.Config.User != "7" || found.doc.Config.History != nil {
		t.Errorf("%v, %v", found, err)
	}
}

// TestConfigBounds refuses a config that asks for more than a container can get.
func TestConfigBounds(t *testing.T) {
	volumes := map[string]struct{}{}
	for i := range limit.DeclaredVolumes.Limit + 1 {
		volumes[fmt.Sprint("/", i)] = struct{}{}
	}
	for words, config := range map[string]ocispec.ImageConfig{
		"volumes that an image declares: 1001, more than the 1000 allowed": {Volumes: volumes},
		"bytes, more than the 6291456 bytes allowed":                       {Env: make([]string, limit.Arguments.Limit/9+1)},
	} {
		s := newTestSource(t)
		platform := ocispec.Platform{OS: "linux", Architecture: "amd64"}
		raw := s.put(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: platform, Config: config})
		c := chooserOf(t, s.blobs, "linux/amd64")
		now := *c.store.settings()
		now.MaxConfigBytes = 8 << 20
		c.store.current.settings.Store(&now)
		_, err := c.choose(t.Context(), s.manifest(func(m *ocispec.Manifest) { m.Config = raw }))
		if kindOf(err) != errdefs.ErrResourceExhausted || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v", words, err)
		}
	}
}

// TestImageBytes refuses an image whose layers are more than may be transferred.
func TestImageBytes(t *testing.T) {
	s := newTestSource(t)
	c := chooserOf(t, s.blobs, "linux/amd64")
	d := s.put(ocispec.MediaTypeImageLayer, []byte("x"))
	d.Size = 300 << 30
	_, err := c.choose(t.Context(), s.manifest(func(m *ocispec.Manifest) { m.Layers = []ocispec.Descriptor{d, d} }))
	if kindOf(err) != errdefs.ErrResourceExhausted || !strings.Contains(err.Error(), "images.max_image_bytes") {
		t.Error(err)
	}
}

// TestLayerLimitIsAnError has the store name the key that a layer broke.
func TestLayerLimitIsAnError(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/links:v1", imageOf(t, gz(t, manyFar(2000)...)))
	s := open(t, t.TempDir(), func(c *Config) { c.MaxLayerMemoryBytes = 100_000 })
	_, err := s.Pull(t.Context(), PullRequest{Reference: host + "/links:v1"})
	says := err != nil && strings.Contains(err.Error(), "images.max_layer_memory_bytes")
	if kindOf(err) != errdefs.ErrResourceExhausted || !fail.As[*limit.Error](err) || !says {
		t.Error(err)
	}
}

func manyFar(n int) []entry {
	var out []entry
	for i := range n {
		out = append(out, aLink(fmt.Sprint("l", i), "nowhere"))
	}
	return out
}
