package image

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestMalformedDocuments feeds one as a manifest, and the same as a config.
func TestMalformedDocuments(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000)
	for _, c := range []struct{ name, text, words string }{
		{"nothing", "", "unexpected end"},
		{"cut short", `{"layers":[`, "unexpected end"},
		{"trailing garbage", `{"layers":[]} x`, "after top-level value"},
		{"two documents", `{"layers":[]}{"layers":[]}`, "after top-level value"},
		{"a byte order mark", "\xef\xbb\xbf" + `{"layers":[]}`, "invalid character"},
		{"deep", deep, "exceeded max depth"},
		{"deep in a known key", `{"layers":` + deep + `}`, "exceeded max depth"},
		{"UTF-16", "{\x00}\x00", "invalid character"},
		{"a comment", `{"layers":[]/**/}`, "invalid character"},
		{"a key twice", `{"layers":[],"layers":[]}`, `the key "layers" twice`},
		{"a key twice, with an escape", `{"layers":[],"la\u0079ers":[]}`, `the key "layers" twice`},
		{"a key in another case", `{"config":{},"Config":{}}`, `the key "Config" twice`},
		{"a key with a long s", "{\"layers\":[],\"layer\u017f\":[]}", "twice"},
		{"a key twice further down", `{"config":{"a":{"b":1,"b":2}}}`, `the key "b" twice`},
		{"in a list", `{"x":[[{"b":1},{"b":1,"c":[],"b":1}]]}`, `the key "b" twice`},
	} {
		s := newTestSource(t)
		s.refuses(c.name, s.put("", []byte(c.text)), errdefs.ErrDataLoss, c.words)
		s.refuses(c.name+" as a config", s.manifest(func(m *ocispec.Manifest) {
			m.Config = s.put(ocispec.MediaTypeImageConfig, []byte(c.text))
		}), errdefs.ErrDataLoss, "image config sha256:")
	}
	for _, c := range []struct{ name, text, words string }{
		{"a number for a list", `{"layers":7}`, "cannot unmarshal number"},
		{"a string for a size", `{"layers":[{"size":"1"}]}`, "cannot unmarshal string"},
		{"a size with a fraction", `{"layers":[{"size":1.5}]}`, "cannot unmarshal number"},
		{"a size without end", `{"layers":[{"size":1e400}]}`, "cannot unmarshal number"},
		{"a size over 64 bits", `{"layers":[{"size":99999999999999999999}]}`, "cannot unmarshal number"},
		{"a digest in a list", `{"layers":[{"digest":["sha256:x"]}]}`, "cannot unmarshal array"},
		{"not UTF-8", "{\"layers\":[],\"annotations\":{\"a\":\"\xff\"}}", "not UTF-8"},
		{"a digest twice", `{"layers":[{"digest":"a","Digest":"b"}]}`, `the key "Digest" twice`},
		{"an entry's digest twice", `{"manifests":[{"digest":"a","DIGEST":"b"}]}`, `the key "DIGEST" twice`},
	} {
		s := newTestSource(t)
		s.refuses(c.name, s.put("", []byte(c.text)), errdefs.ErrDataLoss, c.words)
	}
}

// TestOddDocuments has a config with what nobody knows.
func TestOddDocuments(t *testing.T) {
	s := newTestSource(t)
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": "amd64", "unknown": map[string]any{"deep": []int{1}},
		"config": map[string]any{"User": "odd"},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.choose("linux/amd64", s.manifest(func(m *ocispec.Manifest) {
		m.Config = s.put(ocispec.MediaTypeImageConfig, config)
	}))
	if err != nil || got != "odd" {
		t.Errorf("%q, %v", got, err)
	}
}
