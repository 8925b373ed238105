package e2e

import (
	"archive/tar"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/test/fixture"
	"berth/test/node"
)

// dataRecipe is an image to be mounted: it has two layers, and links that lead to where they must not.
var dataRecipe = fixture.Recipe{Layers: [][]fixture.File{
	{
		{Name: "model/", Mode: 0o755}, {Name: "model/a", Body: []byte("a below\n")},
		{Name: "model/b", Body: []byte("b below\n")},
		{Name: "model/run", Mode: 0o755, Body: []byte("#!/bin/sh\necho runs\n")},
		{Name: "abs", Type: tar.TypeSymlink, Link: "/model"},
		{Name: "out", Type: tar.TypeSymlink, Link: "../../../../../../etc"},
		{Name: "host", Type: tar.TypeSymlink, Link: "/usr/lib/locale"}, {Name: "pipe", Type: tar.TypeFifo, Mode: 0o644},
	},
	{{Name: "model/a", Body: []byte("a above\n")}, {Name: "model/.wh.b"}, {Name: "etc/", Mode: 0o755},
		{Name: "etc/mine", Body: []byte("of the image\n")}},
}}

// imageMount is a mount of an image as a kubelet asks for it.
func imageMount(image, inside string, more ...func(*v1.Mount)) edit {
	return func(c *v1.ContainerConfig) {
		m := &v1.Mount{ContainerPath: inside, Readonly: true, Image: &v1.ImageSpec{Image: image}}
		for _, f := range more {
			f(m)
		}
		c.Mounts = append(c.Mounts, m)
	}
}

func subPath(p string) func(*v1.Mount) { return func(m *v1.Mount) { m.ImageSubPath = p } }

func TestImageVolume(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		dir, data, one := r.volume(), r.imageID("data:latest"), r.imageID("one:latest")
		for _, c := range []struct {
			name, script, want string
			edit               edit
		}{
			{"layers", "cat /v/model/a; ls /v/model; cat /v/etc/mine", "a above\na\nrun\nof the image", imageMount(data, "/v")},
			{"one-layer", "cat /v/model/a /v/model/b", "a below\nb below", imageMount(one, "/v")},
			{"by-name", "cat /v/model/a", "a above", imageMount(ref("data:latest"), "/v")},
			{"executable", "/v/model/run", "runs", imageMount(data, "/v")},
			{"noexec", "/v/model/run 2>/dev/null || echo refused", "refused",
				imageMount(data, "/v", func(m *v1.Mount) { m.MountOptions = []string{"noexec"} })},
			{"read-only", "touch /v/new /v/model/a /v/model/run 2>/dev/null || echo refused; rm -f /v/model/a 2>/dev/null; " +
				"cat /v/model/a", "refused\na above",
				imageMount(data, "/v")},
			{"no-devices-no-setuid", "grep -c ' /v .*nosuid,nodev' /proc/mounts", "1", imageMount(data, "/v")},
			{"one-layer-no-devices", "grep -c ' /v .*nosuid,nodev' /proc/mounts", "1", imageMount(one, "/v")},
			{"one-layer-read-only", "touch /v/new 2>/dev/null || echo refused", "refused", imageMount(one, "/v")},
			{"twice", "cat /v/model/a /w/model/a", "a above\na below", both(imageMount(data, "/v"), imageMount(one, "/w"))},
			{"sub-path", "cat /v/a", "a above", imageMount(data, "/v", subPath("model"))},
			{"sub-path-of-a-file", "cat /etc/given", "of the image", imageMount(data, "/etc/given", subPath("etc/mine"))},
			{"sub-path-through-a-link", "cat /v/a", "a above", imageMount(data, "/v", subPath("abs"))},
			{"sub-path-stays-inside", "cat /v/mine", "of the image", imageMount(data, "/v", subPath("out"))},
			{"among-others", "cat /data/note /data/v/model/a", "real\na above",
				both(imageMount(data, "/data/v"), mount(dir+"/real", "/data"))},
		} {
			config := busybox(c.name, c.script, c.edit)
			ctr := p.start(config)
			st := ctr.finish()
			r.wantText(c.name, ctr.text("stdout"), c.want)
			got := st.Mounts[0]
			want := data
			if strings.HasPrefix(c.name, "one") {
				want = one
			}
			if got.Image.GetImageRef() != want || got.Image.GetImage() != config.Mounts[0].Image.Image || got.HostPath != "" {
				r.Errorf("%s: the status shows the mount %v, wanted image_ref %s", c.name, got, want)
			}
		}
	})
}

// imageID pulls an image and returns what a kubelet puts into a mount.
func (r rig) imageID(image string) string {
	r.Helper()
	id, err := r.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: ref(image)}, nil, nil)
	r.ok(err)
	return id
}

// TestBadImageVolume checks that the message begins with the word that the kubelet looks for, and that nothing is left.
func TestBadImageVolume(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		data := r.imageID("data:latest")
		for _, c := range []struct {
			name string
			edit edit
			code codes.Code
			word string
		}{
			{"absent-image", imageMount(ref("never/pulled:v1"), "/v"), codes.NotFound, "never/pulled"},
			{"absent-path", imageMount(data, "/v", subPath("model/none")), codes.NotFound, "model/none"},
			{"leaves-the-image", imageMount(data, "/v", subPath("host")), codes.NotFound, "host"},
			{"dots", imageMount(data, "/v", subPath("model/../../x")), codes.InvalidArgument, "image_sub_path"},
			{"absolute", imageMount(data, "/v", subPath("/model")), codes.InvalidArgument, "image_sub_path"},
			{"fifo", imageMount(data, "/v", subPath("pipe")), codes.InvalidArgument, "pipe"},
			{"writable", imageMount(data, "/v", func(m *v1.Mount) { m.Readonly = false }), codes.InvalidArgument, "readonly"},
			{"two-sources", imageMount(data, "/v", func(m *v1.Mount) { m.HostPath = "/tmp" }), codes.InvalidArgument,
				"host_path"},
			{"propagation", imageMount(data, "/v", func(m *v1.Mount) {
				m.Propagation = v1.MountPropagation_PROPAGATION_BIDIRECTIONAL
			}),
				codes.InvalidArgument, "propagation"},
			{"no-name", imageMount("", "/v"), codes.InvalidArgument, "image"},
			{"no-image", mount("/tmp", "/v", subPath("x")), codes.InvalidArgument, "image_sub_path"},
		} {
			_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox(c.name, "true", c.edit), p.config)
			r.wantCode(err, c.code, c.word)
			if st, _ := status.FromError(err); !strings.HasPrefix(st.Message(), crierrors.ErrImageVolumeMountFailed.Error()+
				": ") {
				r.Errorf("%s: the message does not begin with the word that the kubelet looks for: %q", c.name, st.Message())
			}
			p.wantNoContainer(c.name)
		}
		r.wantNoVolumes(p)
	})
}

// wantNoVolumes checks that the pod has no image mounted.
func (r rig) wantNoVolumes(p *pod) {
	r.Helper()
	left, err := filepath.Glob(filepath.Join(r.n.State, "pods", p.id, "c", "*", "images"))
	r.ok(err)
	if len(left) > 0 {
		r.Errorf("image volumes are left: %v", left)
	}
}

// TestImageVolumeKeepsItsImage removes the image under a container that mounts it, with a daemon that is killed in
// between.
func TestImageVolumeKeepsItsImage(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			r := ownNode(t, node.Options{Runtime: runtime})
			r.pull("busybox:latest")
			data := r.imageID("data:latest")
			p := r.pod()
			c := p.start(busybox("user", "while :; do sleep 0.1; [ ! -e /tmp/go ] || { cat /v/model/a /v/etc/mine; exit; "+
				"}; done", imageMount(data, "/v")))
			_, stderr, code := r.berth("image", "rm", data)
			if code == 0 || !strings.Contains(stderr, "used by container user") {
				r.Errorf("rm without --force of an image that a container has mounted: code %d, %s", code, stderr)
			}
			if out := r.mustBerth("image", "prune", "--all", "--dry-run"); strings.Contains(out, data) {
				r.Errorf("prune would remove an image that a container has mounted: %s", out)
			}
			r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: data}))
			r.ok(r.n.Restart())
			r.eventually("the image is gone", func() bool {
				resp, err := r.n.Images.ImageStatus(ctx(), &v1.ImageSpec{Image: data}, false)
				return err == nil && resp.Image == nil
			})
			time.Sleep(200 * time.Millisecond) // the sweep of a restart
			c.release()
			c.finish()
			r.wantText("the volume of a removed image", c.text("stdout"), "a above\nof the image")
			r.eventually("the mounts are taken away with the process", func() bool {
				_, err := os.Stat(filepath.Join(r.n.State, "pods", p.id, "c", c.cid))
				return os.IsNotExist(err)
			})
			r.ok(r.n.Runtime.RemoveContainer(ctx(), c.cid))
			r.eventually("the layers go with the last container that had them", func() bool {
				var du struct{ Kept uint64 }
				r.ok(json.Unmarshal([]byte(r.mustBerth("image", "du", "-o", "json")), &du))
				return du.Kept == 0
			})
			r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: data}))
		})
	}
}
