package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
)

// artifact pushes an OCI artifact of files, by their titles, and pulls it as a kubelet does. It returns its name and
// id.
func (r rig) artifact(name string, files ...string) (ref, id string) {
	r.Helper()
	a := fixture.Artifact{Type: "application/vnd.example.model"}
	for i := 0; i < len(files); i += 2 {
		// ORAS gives files the media type of a tar where nobody says another.
		a.Blobs = append(a.Blobs, fixture.ArtifactBlob{
			MediaType: "application/vnd.oci.image.layer.v1.tar", Title: files[i], Body: []byte(files[i+1]),
		})
	}
	registry := onRegistry(r.T)
	_, err := a.Push(registry.Addr, name)
	r.ok(err)
	ref = registry.Ref(name)
	id, err = r.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: ref}, nil, nil)
	r.ok(err)
	if id != a.Digest().String() {
		r.Errorf("the id is %s, not the digest of the manifest %s", id, a.Digest())
	}
	return ref, id
}

// TestArtifactVolume mounts the files of an OCI artifact into containers.
func TestArtifactVolume(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		tag := "t/" + unique(r.T)
		ref, id := r.artifact(tag+":v1", "config.json", "{}", "weights/a", "of a\n", "weights/b", "of b\n", "run",
			"#!/bin/sh\necho runs\n")
		_, one := r.artifact(tag+":one", "only", "one file\n")
		image := r.imageID("data:latest")
		for _, c := range []struct {
			name, script, want string
			edit               edit
		}{
			{"by-id", "cat /v/config.json /v/weights/a /v/weights/b; ls /v", "{}of a\nof b\nconfig.json\nrun\nweights",
				imageMount(id, "/v")},
			{"by-name", "cat /v/weights/b", "of b", imageMount(ref, "/v")},
			{"one-file", "cat /v/only", "one file", imageMount(one, "/v")},
			{"modes", "stat -c '%A %u:%g %n' /v /v/weights /v/weights/a", "drwxr-xr-x 0:0 /v\ndrwxr-xr-x 0:0 /v/weights\n" +
				"-r--r--r-- 0:0 /v/weights/a", imageMount(id, "/v")},
			{"one-file-modes", "stat -c '%A %u:%g %n' /v /v/only", "drwxr-xr-x 0:0 /v\n-r--r--r-- 0:0 /v/only",
				imageMount(one, "/v")},
			{"not-executable", "/v/run 2>/dev/null || echo refused", "refused", imageMount(id, "/v")},
			{"read-only", "touch /v/new 2>/dev/null || rm -f /v/run 2>/dev/null || echo x > /v/config.json 2>/dev/null || " +
				"echo refused; cat /v/config.json", "refused\n{}",
				imageMount(id, "/v")},
			{"nobody-reads", "cat /v/only", "one file",
				both(imageMount(one, "/v"), security(func(s *v1.LinuxContainerSecurityContext) {
					s.RunAsUser = &v1.Int64Value{Value: 65534}
				}))},
			{"sub-path", "cat /v/a; ls /v", "of a\na\nb", imageMount(id, "/v", subPath("weights"))},
			{"sub-path-of-a-file", "cat /etc/given", "of b", imageMount(id, "/etc/given", subPath("weights/b"))},
			{"beside-an-image", "cat /v/only /w/model/a", "one file\na above",
				both(imageMount(one, "/v"), imageMount(image, "/w"))},
		} {
			ctr := p.start(busybox(c.name, c.script, c.edit))
			st := ctr.finish()
			r.wantText(c.name, ctr.text("stdout"), c.want)
			if got := st.Mounts[0].Image.GetImageRef(); !strings.HasPrefix(got, "sha256:") || got != id && got != one {
				r.Errorf("%s: the status shows image_ref %s", c.name, got)
			}
		}
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id,
			busybox("absent", "true", imageMount(id, "/v", subPath("weights/none"))), p.config)
		r.wantCode(err, codes.NotFound, "weights/none")
		p.wantNoContainer("absent")
	})
}

// TestArtifactIsNoImage wants a clear refusal of a container whose own image is an artifact.
func TestArtifactIsNoImage(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		ref, id := r.artifact("chart/"+unique(r.T)+":v1", "chart", "x")
		for _, image := range []string{ref, id} {
			config := busybox("runs-a-file", "true")
			config.Image = &v1.ImageSpec{Image: image}
			_, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config)
			r.wantCode(err, codes.FailedPrecondition, "is an OCI artifact of type \"application/vnd.example.model\"",
				"image volume")
			p.wantNoContainer("runs-a-file")
		}
		r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: ref})) // nothing holds it
	})
}

// TestArtifactsAreListedAndRemoved has two artifacts with the same empty config, a daemon that is killed in between,
// and one of them removed under a container that mounts it.
func TestArtifactsAreListedAndRemoved(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			r := ownNode(t, node.Options{Runtime: runtime})
			r.pull("busybox:latest")
			tag := "pair/" + unique(r.T)
			refA, a := r.artifact(tag+"-a:v1", "file", "of a\n")
			refB, b := r.artifact(tag+"-b:v1", "file", "of b\n")
			if a == b {
				t.Fatal("both have one id")
			}
			listed := func() map[string]*v1.Image {
				all, err := r.n.Images.ListImages(ctx(), nil)
				r.ok(err)
				byID := map[string]*v1.Image{}
				for _, img := range all {
					byID[img.Id] = img
				}
				return byID
			}
			check := func(id, ref string) {
				t.Helper()
				img := listed()[id]
				if img == nil || len(img.RepoTags) != 1 || img.RepoTags[0] != ref || len(img.RepoDigests) != 1 || img.Size == 0 {
					t.Errorf("%s is listed as %v", ref, img)
				}
			}
			p := r.pod()
			reads := "while :; do sleep 0.1; [ ! -e /tmp/go ] || { cat /v/file; exit; }; done"
			c := p.start(busybox("reads-a", reads, imageMount(a, "/v")))
			check(a, refA)
			check(b, refB)
			r.ok(r.n.Restart())
			check(a, refA)
			check(b, refB)
			r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: a}))
			if now := listed(); now[a] != nil || now[b] == nil {
				t.Errorf("after the removal of one are listed %v", now)
			}
			r.ok(r.n.Restart())
			check(b, refB)
			time.Sleep(200 * time.Millisecond) // the sweep of a restart
			r.wantText("the other one", p.output(busybox("reads-b", "cat /v/file", imageMount(refB, "/v"))), "of b")
			c.release()
			c.finish()
			r.wantText("the volume of a removed artifact", c.text("stdout"), "of a")
			p.remove()
			r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: refB}))
			r.eventually("no file of an artifact is left", func() bool {
				left, err := filepath.Glob(filepath.Join(r.n.Root, "images", "layers", "*", "fs", "file"))
				return err == nil && len(left) == 0
			})
		})
	}
}

// TestArtifactArchive saves an artifact by the command line, and loads it again after it was removed.
func TestArtifactArchive(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		ref, id := r.artifact("saved/"+unique(r.T)+":v1", "file", "saved\n", "dir/more", "and more\n")
		file := filepath.Join(t.TempDir(), "artifact.tar")
		r.mustBerth("image", "export", "-o", file, ref)
		r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: ref}))
		r.mustBerth("image", "import", file)
		st, err := os.Stat(file)
		r.ok(err)
		got, err := r.n.Images.ImageStatus(ctx(), &v1.ImageSpec{Image: ref}, false)
		r.ok(err)
		if got.Image.GetId() != id || st.Size() == 0 {
			r.Fatalf("it was loaded as %v", got)
		}
		r.wantText("of a loaded artifact", p.output(busybox("reads", "cat /v/file /v/dir/more", imageMount(ref, "/v"))),
			"saved\nand more")
		if text := r.mustBerth("image", "inspect", ref); !strings.Contains(text, "application/vnd.example.model") {
			r.Errorf("image inspect says %s", text)
		}
		r.mustBerth("image", "history", ref)
		r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: ref}))
	})
}
