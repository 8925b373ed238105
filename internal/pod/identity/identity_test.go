package identity

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"
)

var web = Identity{
	Namespace: "default", Name: "web =\n%", UID: "8c5f3a52-11", Attempt: 3, Handler: "runc",
	Layers: []string{"d1111", "c2222"},
}

func known() Identity { return web }

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity")
	made := web
	made.Created = time.Date(2026, 11, 29, 22, 0, 0, 123456789, time.FixedZone("", 3600))
	if err := Of(path).Create(made); err != nil {
		t.Fatal(err)
	}
	f := Of(path) // as of a daemon that was restarted
	for _, layers := range [][]string{{"d1111"}, {"d3333", "c2222"}, {"d3333"}} {
		if err := f.Keep(known, layers); err != nil {
			t.Fatal(err)
		}
	}
	want := web
	want.Created = made.Created.UTC()
	want.Layers = []string{"d1111", "c2222", "d3333"}
	if got, err := Read(path); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if left, _ := filepath.Glob(path + "?*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestFrozen reads a file as the first release wrote it, and one with lines of a later release.
func TestFrozen(t *testing.T) {
	for _, name := range []string{"testdata/identity-1", "testdata/identity-later"} {
		if got, err := Read(name); err != nil || !reflect.DeepEqual(got, web) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestTornFile cuts the file at every byte. What is read of it is damaged, or the pod with the layers whose lines are
// whole.
func TestTornFile(t *testing.T) {
	whole, err := os.ReadFile("testdata/identity-1")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "identity")
	for n := range whole {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Read(path)
		layers := 0
		for _, l := range web.Layers {
			if bytes.Contains(whole[:n], []byte("layer="+l+"\n")) {
				layers++
			}
		}
		if err == nil && (got.Name != web.Name || !slices.Equal(got.Layers, web.Layers[:layers])) {
			t.Errorf("%d bytes: %+v", n, got)
		}
		if (err == nil) != bytes.Contains(whole[:n], []byte("attempt=3\n")) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// TestKeepAfterATornWrite does not join a new layer to what is left of another.
func TestKeepAfterATornWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity")
	if err := Of(path).Create(web); err != nil {
		t.Fatal(err)
	}
	if err := appendTo(path, []byte("layer=d4%")); err != nil {
		t.Fatal(err)
	}
	if err := Of(path).Keep(known, []string{"d4444"}); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(path); err != nil || !slices.Equal(got.Layers, append(slices.Clone(web.Layers), "d4444")) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestKeepMakesAFileAnew wants what is known of a pod where its file is missing or damaged.
func TestKeepMakesAFileAnew(t *testing.T) {
	for name, was := range map[string]string{"missing": "", "damaged": "berth-pod-identity\nattempt=x\n"} {
		path := filepath.Join(t.TempDir(), "identity")
		if was != "" {
			if err := os.WriteFile(path, []byte(was), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := Of(path).Keep(known, []string{"c2222", "d5"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := web
		want.Layers = []string{"d1111", "c2222", "d5"}
		if got, err := Read(path); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestKeepThatFails does not take for kept what was not written.
func TestKeepThatFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod")
	path := filepath.Join(dir, "identity")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f := Of(path)
	if err := f.Create(web); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".aside"); err != nil {
		t.Fatal(err)
	}
	if err := f.Keep(known, []string{"d5"}); err == nil {
		t.Error("kept in a file that is not there")
	}
	if err := os.Rename(dir+".aside", dir); err != nil {
		t.Fatal(err)
	}
	if err := f.Keep(known, []string{"d5"}); err != nil {
		t.Error(err)
	}
	if got, err := Read(path); err != nil || len(got.Layers) != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}
