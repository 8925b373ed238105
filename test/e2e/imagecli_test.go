package e2e

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth/test/fixture"
	"berth/test/node"
)

// layered pushes an image of two layers, of which the second one hides, replaces and leads through what the first one
// has.
func (r rig) layered(name string) (reference string) {
	r.Helper()
	busybox, err := fixture.BusyboxRecipe()
	r.ok(err)
	recipe := busybox
	recipe.Layers = append(append([][]fixture.File{}, busybox.Layers...), []fixture.File{
		{Name: "srv/implied/big", Body: []byte(strings.Repeat(name, 200_000))}, {Name: "srv/note", Body: []byte("first")},
		{Name: "srv/note", Body: []byte("note of " + name)},
	})
	img, err := recipe.Build()
	r.ok(err)
	repo := r.repository() + "-" + name + ":v1"
	r.push(repo, img)
	return ref(repo)
}

// TestImageArchives exports an image in every form, removes it, and imports it again.
func TestImageArchives(t *testing.T) {
	own(t, func(r rig) {
		image := r.layered("app")
		r.mustBerth("pull", image)
		before := r.image(image)
		dir := r.TempDir()
		for _, flags := range []string{"", "--compress", "--format docker", "--format docker --compress"} {
			archive := filepath.Join(dir, strings.ReplaceAll("a"+flags, " ", "_")+".tar")
			r.mustBerth(append([]string{"image", "export", "-o", archive, image}, strings.Fields(flags)...)...)
			r.mustBerth("image", "rm", image)
			if r.image(image) != nil {
				r.Fatal("it is still there")
			}
			r.mustBerth("image", "import", archive)
			after := r.image(image)
			if after == nil || after.Id != before.Id || strings.Join(after.RepoTags, " ") != image {
				r.Fatalf("%s: %v came back, wanted %v", flags, after, before)
			}
			if flags == "" {
				r.unpackedByUmoci(archive)
			}
		}
		p := r.pod()
		out := p.output(
			node.Container("imported", image, []string{"sh", "-c", "cat /srv/note; echo; wc -c </srv/implied/big"}))
		r.wantText("imported", strings.Join(strings.Fields(out), " "), "note of app 600000")
		if out := r.mustBerth("check"); out != "nothing is wrong\n" {
			r.Errorf("check: %s", out)
		}
	})
}

// unpackedByUmoci lets a tool of others make a tree of an archive.
func (r rig) unpackedByUmoci(archive string) {
	r.Helper()
	dir := r.TempDir()
	layout, bundle := filepath.Join(dir, "layout"), filepath.Join(dir, "bundle")
	r.ok(os.Mkdir(layout, 0o755))
	for _, args := range [][]string{{"tar", "-xf", archive, "-C", layout},
		{"umoci", "unpack", "--image", layout + ":v1", bundle}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			r.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	note, err := os.ReadFile(bundle + "/rootfs/srv/note")
	r.ok(err)
	r.wantText("umoci's tree", string(note), "note of app")
}

func TestImageExportNeedsWholeFiles(t *testing.T) {
	own(t, func(r rig) {
		image := r.layered("damaged")
		r.mustBerth("pull", image)
		found, err := filepath.Glob(r.n.Root + "/images/layers/*/fs/srv/note")
		r.ok(err)
		if len(found) != 1 {
			r.Fatalf("found %v", found)
		}
		r.ok(os.WriteFile(found[0], []byte("note of damagex"), 0o644))
		archive := filepath.Join(r.TempDir(), "a.tar")
		_, stderr, code := r.berth("image", "export", "-o", archive, image)
		if code == 0 || !strings.Contains(stderr, "srv/note") || !strings.Contains(stderr, "berth check --repair") {
			r.Errorf("code %d: %s", code, stderr)
		}
		if left, _ := os.ReadDir(filepath.Dir(archive)); len(left) != 0 {
			r.Errorf("left: %v", left)
		}
		r.mustBerth("check", "--repair")
		r.mustBerth("image", "export", "-o", archive, image)
	})
}

// TestImageExportToNobody goes away in the middle of an archive.
func TestImageExportToNobody(t *testing.T) {
	own(t, func(r rig) {
		image := r.layered("left")
		r.mustBerth("pull", image)
		for _, flag := range []string{"--compress=false", "--compress"} {
			cmd := r.n.Command("image", "export", flag, image)
			out, err := cmd.StdoutPipe()
			r.ok(err)
			r.ok(cmd.Start())
			_, err = io.ReadFull(out, make([]byte, 1000))
			r.ok(err)
			r.ok(out.Close())
			if err := cmd.Wait(); err == nil {
				r.Error("it ended as if all was written")
			}
			cmd = r.n.Command("image", "export", flag, "-o", filepath.Join(r.TempDir(), "a.tar"), image)
			r.ok(cmd.Start())
			r.ok(cmd.Process.Signal(syscall.SIGKILL))
			_ = cmd.Wait()
		}
		r.eventually("nothing is in flight", func() bool {
			left, err := os.ReadDir(r.n.Root + "/images/ingest")
			return err == nil && len(left) == 0
		})
		r.mustBerth("image", "rm", image)
		r.eventually("no layer is left", func() bool {
			return !strings.Contains(r.mustBerth("image", "du"), "more in layers")
		})
	})
}

func TestImageTellings(t *testing.T) {
	own(t, func(r rig) {
		image := r.layered("told")
		r.mustBerth("pull", image)
		r.mustBerth("run", "-d", "--name", "user", "--net", "host", "--log-dir", r.n.Logs, image, "sleep", "1000")
		for args, words := range map[string][]string{
			"image list": {image}, "image inspect " + image: {image, "container user", "linux/", "used by"},
			"image history " + image: {"CREATED BY", "kB"}, "image du": {image, "SHARED", "2 images"},
			"image du --layers":           {"LAYER", image},
			"image prune --all --dry-run": {"busybox:latest", "would be free"},
		} {
			out := r.mustBerth(strings.Fields(args)...)
			for _, word := range words {
				if !strings.Contains(out, word) {
					r.Errorf("berth %s lacks %q: %s", args, word, out)
				}
			}
		}
		for _, args := range []string{"image list", "image inspect " + image, "image history " + image, "image du"} {
			if out := r.mustBerth(append(strings.Fields(args), "-o", "json")...); !json.Valid([]byte(out)) {
				r.Errorf("berth %s -o json: %s", args, out)
			}
		}
		if _, stderr, code := r.berth("image", "rm", image); code == 0 || !strings.Contains(stderr, "container user") {
			r.Errorf("rm of what is used: code %d, %s", code, stderr)
		}
		if out := r.mustBerth("image", "prune", "--all"); !strings.Contains(out, "busybox") || strings.Contains(out, image) {
			r.Errorf("prune: %s", out)
		}
		if r.image(image) == nil || r.image(ref("busybox:latest")) != nil {
			r.Error("prune removed the wrong images")
		}
		r.mustBerth("rm", "-f", "user")
		if out := r.mustBerth("image", "prune", "--all"); !strings.Contains(out, image) ||
			strings.Contains(out, "\n0 B freed") {
			r.Errorf("prune: %s", out)
		}
		r.eventually("the store is empty", func() bool { // directories are removed behind the answer
			var du struct{ Total, Kept uint64 }
			r.ok(json.Unmarshal([]byte(r.mustBerth("image", "du", "-o", "json")), &du))
			return du.Total+du.Kept == 0
		})
	})
}
