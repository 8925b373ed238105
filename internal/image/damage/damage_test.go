package damage

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/image/layer"
)

// TestDifferences names the files of a layer that have changed, a few of them when there are many.
func TestDifferences(t *testing.T) {
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	var err error
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	limits := layer.Limits{Bytes: 1 << 20, Entries: 10, Memory: 1 << 20}
	if _, err := layer.Unpack(t.Context(), &plain, dir, limits); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"a is missing", "b is missing", "and 1 more", "and 2 more", "and 3 more"} {
		if err := os.Remove(filepath.Join(dir, layer.FS, string(rune('a'+i)))); err != nil {
			t.Fatal(err)
		}
		err := Differences(t.Context(), dir)
		if !fail.Is(err, errdefs.ErrDataLoss) || !strings.Contains(err.Error(), want) ||
			!strings.HasSuffix(err.Error(), Advice) {
			t.Errorf("without %d files: %v", i+1, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, layer.ManifestFile)); err != nil {
		t.Fatal(err)
	}
	if err := Differences(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "cannot be told") {
		t.Errorf("without a manifest: %v", err)
	}
}
