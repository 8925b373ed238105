package attack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// layer is a compressed tar.
type layer struct {
	blob   []byte
	diffID digest.Digest
}

// pack makes a layer of the entries that fill adds.
func pack(fill func(add func(h tar.Header, body string))) (layer, error) {
	var blob bytes.Buffer
	diff := digest.Canonical.Digester()
	z, err := gzip.NewWriterLevel(&blob, gzip.BestSpeed)
	if err != nil {
		return layer{}, err
	}
	w := tar.NewWriter(io.MultiWriter(z, diff.Hash()))
	var failed error
	fill(func(h tar.Header, body string) {
		h.Size, h.Format = int64(len(body)), tar.FormatPAX
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if failed == nil {
			failed = w.WriteHeader(&h)
		}
		if failed == nil {
			_, failed = io.WriteString(w, body)
		}
	})
	if failed == nil {
		failed = w.Close()
	}
	if failed == nil {
		failed = z.Close()
	}
	return layer{blob.Bytes(), diff.Digest()}, failed
}

// publish puts an image of these layers under a name. Of extra, keys are added to its config.
func (r *registry) publish(name string, extra map[string]any, layers ...layer) (config digest.Digest, err error) {
	diffs := []digest.Digest{}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	for _, l := range layers {
		diffs = append(diffs, l.diffID)
		d := r.put(ocispec.MediaTypeImageLayerGzip, l.blob)
		m.Layers = append(m.Layers, ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageLayerGzip, Digest: d, Size: int64(len(l.blob)),
		})
	}
	doc := map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	}
	for k, v := range extra {
		doc[k] = v
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		return "", err
	}
	config = r.put(ocispec.MediaTypeImageConfig, raw)
	m.Config = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: config, Size: int64(len(raw))}
	return config, r.manifest(name, m)
}

func (r *registry) manifest(name string, m ocispec.Manifest) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	r.tag(name, r.put(ocispec.MediaTypeImageManifest, raw))
	return nil
}

// honest is a layer of n files of some kilobytes each.
func honest(name string, n int) (layer, error) {
	return pack(func(add func(tar.Header, string)) {
		for i := range n {
			body := strings.Repeat(fmt.Sprint(name, i, "\n"), 300)
			add(tar.Header{Name: fmt.Sprintf("%s/%d", name, i), Typeflag: tar.TypeReg}, body)
		}
	})
}

// bombs are images that cost whoever unpacks them, at one in so many of their size.
func bombs(part int) ([]bomb, error) {
	long := strings.Repeat("x", 900_000)
	var out []bomb
	add := func(title string, extra map[string]any, fills ...func(add func(tar.Header, string))) error {
		b := bomb{title: title, extra: extra}
		for _, fill := range fills {
			l, err := pack(fill)
			if err != nil {
				return fmt.Errorf("%s: %w", title, err)
			}
			b.layers = append(b.layers, l)
		}
		out = append(out, b)
		return nil
	}
	err := add("600 hard links of 0.9 MB each", nil, func(add func(tar.Header, string)) {
		for i := range 600 / part {
			add(tar.Header{Name: fmt.Sprint("l", i), Typeflag: tar.TypeLink, Linkname: fmt.Sprint("nowhere/", i, long)}, "")
		}
	})
	if err != nil {
		return nil, err
	}
	err = add("60 files, 1,990 undescribed directories deep", nil, func(add func(tar.Header, string)) {
		for i := range 60 / part {
			name := fmt.Sprintf("%03d/%sx", i, strings.Repeat("a/", 1990))
			add(tar.Header{Name: name, Typeflag: tar.TypeReg}, "")
		}
	})
	if err != nil {
		return nil, err
	}
	err = add("4,000 symlinks below, 4,000 files through them", nil, func(add func(tar.Header, string)) {
		for i := range 4000 / part {
			add(tar.Header{Name: fmt.Sprint("t/", i, "/"), Typeflag: tar.TypeDir}, "")
			add(tar.Header{Name: fmt.Sprint("d", i), Typeflag: tar.TypeSymlink, Linkname: fmt.Sprint("t/", i)}, "")
		}
	}, func(add func(tar.Header, string)) {
		for i := range 4000 / part {
			add(tar.Header{Name: fmt.Sprintf("d%d/f", i), Typeflag: tar.TypeReg}, "x")
		}
	})
	if err != nil {
		return nil, err
	}
	history := make([]struct{}, 2_500_000/part)
	err = add("a config with 2.5 million empty history entries", map[string]any{"history": history},
		func(add func(tar.Header, string)) { add(tar.Header{Name: "f", Typeflag: tar.TypeReg}, "x") })
	return out, err
}

// bomb is an image: its layers, and what its config has besides what every config has.
type bomb struct {
	title  string
	extra  map[string]any
	layers []layer
}
