package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/image/catalog"
	"berth/internal/image/layer"
)

// TestCheckKnowsTheTar damages what only the way back to a layer's tar needs; repair fetches it again.
func TestCheckKnowsTheTar(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/tar:v1", imageOf(t, gz(t, file("a", "old"), file("a", "new"))))
	for name, do := range map[string]func(dir string) error{
		"no skeleton":     func(d string) error { return os.Remove(filepath.Join(d, layer.TarSplitFile)) },
		"a torn skeleton": func(d string) error { return os.Truncate(filepath.Join(d, layer.TarSplitFile), 40) },
		"replaced file": func(d string) error {
			return os.WriteFile(filepath.Join(d, layer.ReplacedDir, "1"), []byte("odd"), 0o600)
		},
		"no replaced": func(d string) error { return os.RemoveAll(filepath.Join(d, layer.ReplacedDir, "1")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			img := pull(t, s, host+"/tar:v1")
			sound(t, s)
			if err := do(s.disk.Path(catalog.LayersDir, img.Layers[0])); err != nil {
				t.Fatal(err)
			}
			var found []Finding
			if err := s.Check(t.Context(), true, func(f Finding) { found = append(found, f) }); err != nil {
				t.Fatal(err)
			}
			if len(found) != 1 || !found[0].Repaired || !strings.Contains(found[0].Path, layer.TarSplitFile) {
				t.Errorf("found %+v", found)
			}
			sound(t, s)
		})
	}
}
