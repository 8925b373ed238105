package content

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// smallTree is a /usr with n files of 1000 bytes of each kind.
func smallTree(t *testing.T, n int) *Tree {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"usr/bin", "usr/lib/x-linux-gnu", "usr/share/doc", "usr/lib/python3"} {
		path := filepath.Join(root, dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			name := filepath.Join(path, string(rune('a'+i)))
			if err := os.WriteFile(name, bytes.Repeat([]byte{byte(i)}, 1000), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("a", filepath.Join(path, "z")); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestLayersAreWhatTheyPromise(t *testing.T) {
	layers, err := smallTree(t, 10).Layers(t.TempDir(), 5000, 7000)
	if err != nil {
		t.Fatal(err)
	}
	for i, content := range []int{5000, 7000} {
		for compression, inflate := range inflaters {
			blob, err := os.ReadFile(layers[i].blobs[compression].path)
			if err != nil {
				t.Fatal(err)
			}
			if got := sha(blob); got != layers[i].blobs[compression].digest.Hex ||
				int64(len(blob)) != layers[i].Size(compression) {
				t.Errorf("layer %d: its %s has the digest %s and %d bytes", i, compression, got, len(blob))
			}
			plain := inflate(t, blob)
			if sha(plain) != layers[i].diffID.Hex || int64(len(plain)) != layers[i].Plain {
				t.Errorf("layer %d: inflated from %s it is not what its diff id says", i, compression)
			}
			if bytes, entries := weigh(t, plain); bytes != content || entries != layers[i].Entries {
				t.Errorf("layer %d has %d bytes of content in %d entries, want %d in %d", i, bytes, entries, content,
					layers[i].Entries)
			}
		}
	}
}

var inflaters = map[string]func(*testing.T, []byte) []byte{
	Gzip: func(t *testing.T, blob []byte) []byte {
		r, err := gzip.NewReader(bytes.NewReader(blob))
		return all(t, r, err)
	},
	Zstd: func(t *testing.T, blob []byte) []byte {
		r, err := zstd.NewReader(bytes.NewReader(blob))
		if err == nil {
			defer r.Close()
		}
		return all(t, r, err)
	},
}

func all(t *testing.T, r io.Reader, err error) []byte {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func sha(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func weigh(t *testing.T, plain []byte) (content, entries int) {
	t.Helper()
	tr := tar.NewReader(bytes.NewReader(plain))
	for ; ; entries++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return content, entries
		}
		if err != nil {
			t.Fatal(err)
		}
		content += int(h.Size)
	}
}

func TestLayersFollowEachOther(t *testing.T) {
	tree := smallTree(t, 10)
	first, err := tree.cut(3000)
	if err != nil {
		t.Fatal(err)
	}
	second, err := tree.cut(3000)
	if err != nil {
		t.Fatal(err)
	}
	if first[0] == second[0] {
		t.Errorf("both layers begin with %s", first[0])
	}
	tree.Rewind()
	again, err := tree.cut(3000)
	if err != nil || again[0] != first[0] {
		t.Errorf("after Rewind a layer begins with %v (%v), want %s", again, err, first[0])
	}
}

func TestATreeThatIsTooSmall(t *testing.T) {
	_, err := smallTree(t, 2).Layers(t.TempDir(), 3000, 1<<30)
	if err == nil || !strings.Contains(err.Error(), "/usr is too small") {
		t.Errorf("the error is %v", err)
	}
}

func TestImage(t *testing.T) {
	layers, err := smallTree(t, 10).Layers(t.TempDir(), 2000, 2000)
	if err != nil {
		t.Fatal(err)
	}
	img, err := Image(Zstd, layers...)
	if err != nil {
		t.Fatal(err)
	}
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range layers {
		if m.Layers[i].Digest != l.blobs[Zstd].digest || m.Layers[i].Size != l.Size(Zstd) ||
			cf.RootFS.DiffIDs[i] != l.diffID {
			t.Errorf("layer %d is %+v with diff id %s", i, m.Layers[i], cf.RootFS.DiffIDs[i])
		}
	}
}
