package bundle

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/spec"
)

// TestDeclaredVolumesOfFiles makes nothing where a mount of the request, which may be of a file, takes the place of a
// volume, and follows links that lead nowhere yet, as an OCI runtime does with the targets of mounts.
func TestDeclaredVolumesOfFiles(t *testing.T) {
	b, _ := testBuilder(t)
	for name, test := range map[string]struct {
		volume, mount   string
		file, link, to  string // what the image has there
		made, untouched string // a directory that is made and stays writable, and what is not made
	}{
		"nothing there":        {volume: "/run/x", mount: "/run/x", untouched: "run"},
		"a file there":         {volume: "/etc/a", mount: "/etc/a", file: "etc/a"},
		"written differently":  {volume: "/run//x/", mount: "/run/y/../x", untouched: "run"},
		"by another name":      {volume: "/var/run/x", mount: "/run/x", link: "var/run", to: "../run", untouched: "run"},
		"its link to a mount":  {volume: "/app", mount: "/data", link: "app", to: "/data/app", untouched: "data"},
		"its link to the same": {volume: "/data", mount: "/mnt/x", link: "data", to: "mnt/x", untouched: "mnt"},
		"mounted at the link":  {volume: "/mnt/x", mount: "/data", link: "data", to: "mnt/x", untouched: "mnt"},
		"below a file":         {volume: "/f/x", mount: "/f", file: "f"},
		"its link to nothing": {volume: "/app/v", mount: "/x", link: "app", to: "/data/app", made: "/data/app/v",
			untouched: "x"},
		"above a mount": {volume: "/data", mount: "/data/sub/x", made: "/data", untouched: "data/sub"},
	} {
		root := t.TempDir()
		at := func(path string) string { return filepath.Join(root, path) }
		for _, err := range []error{
			os.MkdirAll(filepath.Dir(at(test.file)), 0o755), os.MkdirAll(filepath.Dir(at(test.link)), 0o755),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if test.file != "" {
			if err := os.WriteFile(at(test.file), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if test.link != "" {
			if err := os.Symlink(test.to, at(test.link)); err != nil {
				t.Fatal(err)
			}
		}
		cfg := &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{ReadonlyRootfs: true},
		}, Mounts: []*runtimeapi.Mount{{ContainerPath: test.mount}}}
		r, rc := record(t, b, cfg)
		got, err := b.Container(r, rc).declaredVolumes(t.Context(), root, cfg, map[string]struct{}{test.volume: {}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var want []spec.Volume
		if test.made != "" {
			want = []spec.Volume{{Path: test.made, Source: root + test.made}}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: writable are %v, wanted %v", name, got, want)
		}
		if info, err := os.Lstat(at(test.made)); err != nil || !info.IsDir() {
			t.Errorf("%s: %s: %v", name, test.made, err)
		}
		if _, err := os.Lstat(at(test.untouched)); test.untouched != "" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: /%s was made, or %v", name, test.untouched, err)
		}
	}
}

// TestMakeWorkingDir makes what is missing of a working directory, also where a link leads to that.
func TestMakeWorkingDir(t *testing.T) {
	b, _ := testBuilder(t)
	r, rc := record(t, b, &runtimeapi.ContainerConfig{})
	c, root := b.Container(r, rc), t.TempDir()
	for at, to := range map[string]string{"app": "/data/app", "out": "../../../" + t.Name(), "loop": "loop", "sys": "x"} {
		if err := os.Symlink(to, filepath.Join(root, at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(root+"/file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for dir, made := range map[string]string{
		"/app/a": "data/app/a", "/app": "data/app", "/new/dir": "new/dir", "/out/x": t.Name() + "/x", "/": ".",
	} {
		if err := c.pod.makeWorkingDir(t.Context(), root, dir); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		if info, err := os.Lstat(filepath.Join(root, made)); err != nil || !info.IsDir() {
			t.Errorf("%s: %s: %v", dir, made, err)
		}
	}
	for _, bad := range []string{"/file", "/file/x", "/loop/x"} {
		if err := c.pod.makeWorkingDir(t.Context(), root, bad); err == nil {
			t.Errorf("%s was made", bad)
		}
	}
}

// TestMakeMountPoints makes directories behind links that lead nowhere, for a mount of a file the one that it is in.
// All else is the OCI runtime's.
func TestMakeMountPoints(t *testing.T) {
	b, _ := testBuilder(t)
	r, rc := record(t, b, &runtimeapi.ContainerConfig{})
	c, root, dir := b.Container(r, rc), t.TempDir(), t.TempDir()
	for at, to := range map[string]string{"var": "/none/var", "conf": "etc/conf", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(root, at)); err != nil {
			t.Fatal(err)
		}
	}
	file := dir + "/file"
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var mounts []spec.ResolvedMount
	for at, source := range map[string]string{
		"/var/run/secrets": dir, "/conf": file, "/plain/dir": dir, "/plain/file": file, "/loop/x": dir,
	} {
		mounts = append(mounts, spec.ResolvedMount{Mount: &runtimeapi.Mount{ContainerPath: at}, Source: source})
	}
	if err := c.makeMountPoints(t.Context(), root, mounts); err != nil {
		t.Fatal(err)
	}
	for at, made := range map[string]bool{"none/var/run/secrets": true, "etc": true, "etc/conf": false, "plain": false} {
		if info, err := os.Lstat(filepath.Join(root, at)); made != (err == nil) || made && !info.IsDir() {
			t.Errorf("%s: %v", at, err)
		}
	}
}
