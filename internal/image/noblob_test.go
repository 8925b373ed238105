package image

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestNoBlobIsKept looks for a compressed layer of an image below the root of the store: what is kept is unpacked.
func TestNoBlobIsKept(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	layer := gz(t, file("hello", "there"))
	push(t, host+"/app:v1", imageOf(t, layer))
	blob, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, t.TempDir())
	img := pull(t, s, host+"/app:v1")
	if got := content(t, s, img, "hello"); got != "there" {
		t.Fatalf("the layer has %q", got)
	}
	sound(t, s)
	seen := false
	err = filepath.WalkDir(s.disk.Path(""), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) == blob.Hex {
			t.Errorf("%s is the layer as it was fetched", path)
		}
		seen = seen || string(data) == "there"
		return err
	})
	if err != nil || !seen {
		t.Errorf("the layer as it was unpacked is seen: %v, %v", seen, err)
	}
}
