package layer

import (
	"bytes"
	"strings"
	"testing"
)

// TestLoadResultRefusesUnknownDirectory wants an error for a result, as a subverted unpacker may write it, that has a
// hard link in a directory which the layer does not have: Finalize would panic at such an id.
func TestLoadResultRefusesUnknownDirectory(t *testing.T) {
	d := t.TempDir()
	data := archive(t, dir("d", 0o755), hardlink("d/further", "below"))
	res, err := UnpackConfined(t.Context(), bytes.NewReader(data), d, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	res.links[nodeID(res.dirs.count)] = map[string]string{"further": "below"}
	if err := res.Save(d); err != nil {
		t.Fatal(err)
	}
	loaded, err := LoadResult(t.Context(), d, Limits{})
	if err == nil {
		t.Fatalf("loaded hard links in %d directories", len(loaded.links))
	}
	if !strings.Contains(err.Error(), "hard links are in directory 2 of 2") {
		t.Fatalf("the error is %q", err)
	}
}
