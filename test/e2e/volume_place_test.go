package e2e

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/nri/pkg/api"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
)

// ways are pods and roots by name: a plain pod and one with a user namespace, whose mounts are mapped as a kubelet asks
// for it, each with a root that is writable and one that is not.
func (r rig) ways(f func(r rig, name string, p *pod, root edit)) {
	for how, edits := range map[string][]func(*v1.PodSandboxConfig){"plain": nil, "userns": {inUserns}} {
		p := r.pod(append(edits, func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-" + how })...)
		for kind, root := range map[string]edit{
			"writable": func(*v1.ContainerConfig) {}, "read-only": frozenRoot,
		} {
			own := func(c *v1.ContainerConfig) {
				root(c)
				if how == "userns" {
					for _, m := range c.Mounts {
						mapped(m)
					}
				}
			}
			r.sub(how+", "+kind, func(r rig) { f(r, how+"-"+kind, p.on(r), own) })
		}
	}
}

// TestVolumeIsAFile mounts a file, or a directory over a file, where the image declares a volume.
func TestVolumeIsAFile(t *testing.T) {
	each(t, func(r rig) {
		dir := r.volume()
		for _, c := range []struct {
			name, volume, host, at, script, want string
			files                                []fixture.File
		}{
			{"socket", "/var/run/x.sock", "/file", "/var/run/x.sock", "cat /var/run/x.sock", "from the host", nil},
			{"config", "/etc/app.conf", "/file", "/etc/app.conf", "cat /etc/app.conf", "from the host",
				[]fixture.File{{Name: "etc/app.conf", Body: []byte("of the image\n")}}},
			{"name", "/other/x.sock", "/file", "/place/x.sock", "cat /place/x.sock; cat /other/x.sock",
				"from the host\nfrom the host", []fixture.File{
					{Name: "place/", Mode: 0o755}, {Name: "other", Type: tar.TypeSymlink, Link: "/place"},
				}},
			{"link", "/x.sock", "/file", "/place/x.sock", "cat /place/x.sock /x.sock", "from the host\nfrom the host",
				[]fixture.File{{Name: "x.sock", Type: tar.TypeSymlink, Link: "place/x.sock"}}},
			{"below-link", "/data/x.sock", "/file", "/data/x.sock", "cat /data/x.sock; ls /mnt/disk", "from the host\nx.sock",
				[]fixture.File{{Name: "data", Type: tar.TypeSymlink, Link: "mnt/disk"}}},
			{"below", "/data/sub", "/real", "/data", "cat /data/note /data/sub/deep", "real\ndeep", nil},
		} {
			image := r.hostile("file-"+c.name, c.files, c.volume)
			r.ways(func(r rig, name string, p *pod, root edit) {
				config := node.Container(c.name+"-"+name, image, []string{"sh", "-c", c.script}, mount(dir+c.host, c.at), root)
				r.wantText(c.name, p.output(p.as(config)), c.want)
			})
		}
	})
}

// TestDirectoryBehindALink starts in a directory, and has a volume, to which a link of the image leads whose target
// only a mount of the pod has; and the same where nothing is mounted.
func TestDirectoryBehindALink(t *testing.T) {
	each(t, func(r rig) {
		dir := r.volume()
		app := []fixture.File{{Name: "app", Type: tar.TypeSymlink, Link: "/data/sub"}}
		data := []fixture.File{{Name: "data", Type: tar.TypeSymlink, Link: "mnt/disk"}}
		for _, c := range []struct {
			name, volume, cwd, at, script, want string
			files                               []fixture.File
		}{
			{"cwd", "", "/app", "/data", "pwd -P; cat deep", "/data/sub\ndeep", app},
			{"volume", "/app", "", "/data", "cat /app/deep", "deep", app},
			{"both", "/app", "/app", "/data", "cat deep", "deep", app},
			{"target", "/data", "/data/sub", "/mnt/disk", "cat deep", "deep", data},
			{"mounted-link", "/data", "/data/sub", "/data", "cat deep /mnt/disk/sub/deep", "deep\ndeep", data},
			{"mount", "", "", "/data", "cat /data/sub/deep /mnt/disk/sub/deep", "deep\ndeep", data},
			{"mount-below", "", "", "/data/x/y", "cat /data/x/y/sub/deep", "deep", data},
			{"elsewhere", "/app", "/app", "/other", "pwd -P; touch x 2>/dev/null && ls", "/data/sub\nx", app},
		} {
			var volumes []string
			if c.volume != "" {
				volumes = []string{c.volume}
			}
			image := r.hostile("link-"+c.name, c.files, volumes...)
			r.ways(func(r rig, name string, p *pod, root edit) {
				config := node.Container(c.name+"-"+name, image, []string{"sh", "-c", c.script}, mount(dir+"/real", c.at), root)
				config.WorkingDir = c.cwd
				r.wantText(c.name, p.output(p.as(config)), c.want)
			})
		}
		p, image := r.pod(), r.hostile("link-none", app)
		config := node.Container("none", image, []string{"sh", "-c", "pwd -P; ls -A | wc -l"})
		config.WorkingDir = "/app/new"
		r.wantText("nothing mounted", p.output(config), "/data/sub/new\n0")
	})
}

// TestVolumesLeaveMountsAloneAmongAdded has the image of TestVolumesLeaveMountsAlone whose link leads below a volume,
// in containers to which a CDI device or an NRI plugin adds a mount. The request's mount is still what is there.
func TestVolumesLeaveMountsAloneAmongAdded(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			cdi := t.TempDir()
			r := ownNode(t, node.Options{Runtime: runtime, NRI: true, Tables: fmt.Sprintf("[cdi]\nspec_dirs = [%q]\n", cdi)})
			r.pull("busybox:latest")
			r.ok(os.WriteFile(filepath.Join(cdi, "gpu.json"), []byte(`{"cdiVersion":"0.7.0","kind":"vendor.com/gpu","devices":[
 {"name":"one","containerEdits":{"mounts":[{"hostPath":"`+cdi+`","containerPath":"/added","options":["ro","rbind"]}]}}]}`),
				0o644))
			image := r.hostile("added", []fixture.File{
				{Name: "var/lib/app/data/", Mode: 0o755}, {Name: "data", Type: tar.TypeSymlink, Link: "/var/lib/app/data"},
			}, "/var/lib/app")
			by := map[string]edit{"cdi": cdiDevice("vendor.com/gpu=one"), "nri": func(*v1.ContainerConfig) {}}
			r.join("10", "adder", &plugin{adjust: func(c *api.Container) (
				*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
				if c.Name != "nri" {
					return nil, nil, nil
				}
				a := &api.ContainerAdjustment{}
				a.AddMount(&api.Mount{Source: cdi, Destination: "/added", Type: "bind", Options: []string{"rbind", "ro"}})
				return a, nil, nil
			}})
			for how, edits := range map[string][]func(*v1.PodSandboxConfig){"plain": nil, "userns": {inUserns}} {
				for name, added := range by {
					if name == "cdi" && how == "userns" && runtime == node.Crun {
						continue // Debian's crun maps no ids of a mount as CDI asks for it
					}
					dir := r.directory()
					p := r.pod(append(edits, func(c *v1.PodSandboxConfig) { c.Metadata.Name += name + how })...)
					config := p.as(node.Container(name, image, []string{"sh", "-c", "ls /added; cat /data/note; touch /data/new; " +
						"touch /var/lib/app/own && echo writable; touch /x 2>/dev/null || echo read-only"}, mount(dir, "/data"),
						added, frozenRoot))
					r.wantText(name+", "+how, p.output(config), "gpu.json\nreal\nwritable\nread-only")
					if _, err := os.Stat(dir + "/new"); err != nil {
						r.Errorf("%s, %s: what was written to the mount is not on the host: %v", name, how, err)
					}
				}
			}
		})
	}
}
