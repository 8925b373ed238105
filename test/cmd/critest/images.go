package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/test/fixture"
)

// hosts are the registries that the suite pulls from.
var hosts = []string{"registry.k8s.io", "k8s.gcr.io", "gcr.io"}

const (
	e2e   = "e2e-test-images/"
	tools = "k8s-staging-cri-tools/"
)

// The users and groups that the suite expects of images.
const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/sh\n" +
		"default-user:x:1000:1000::/:/bin/sh\n" +
		"nobody:x:65534:65534:nobody:/:/bin/false\n"
	group = "root:x:0:\nwww-data:x:33:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n" +
		"nogroup:x:65534:\n"
)

// push makes the images, pushes them, and returns the digest of the one that the suite wants by digest, in hexadecimal.
func push(r *fixture.Registry) (string, error) {
	program, err := own()
	if err != nil {
		return "", err
	}
	base, err := shell(program)
	if err != nil {
		return "", err
	}
	recipes := map[string]fixture.Recipe{
		e2e + "busybox:1.29-2": base(v1.Config{}),
		e2e + "nginx:1.14-2":   server(base(v1.Config{}), program, "nginx", "-g", "daemon off;"),
		e2e + "httpd:2.4.39-4": server(base(v1.Config{}), program, "httpd", "-D", "FOREGROUND"),
		e2e + "nonewprivs:1.3": {
			Config: v1.Config{Entrypoint: []string{"/nnp"}},
			Layers: [][]fixture.File{{{Name: "nnp", Mode: 0o4755, Body: program}}},
		},
		"pause:3.9": {
			Config: v1.Config{Entrypoint: []string{"/pause"}},
			Layers: [][]fixture.File{{{Name: "pause", Mode: 0o755, Body: program}}},
		},
		tools + "test-image-user-uid":            base(v1.Config{User: "1002"}),
		tools + "test-image-user-username":       base(v1.Config{User: "www-data"}),
		tools + "test-image-user-uid-group":      base(v1.Config{User: "1003:1004"}),
		tools + "test-image-user-username-group": base(v1.Config{User: "www-data:1004"}),
		tools + "test-image-predefined-group":    base(v1.Config{User: "1000"}),
	}
	for _, name := range []string{"hostnet-nginx", "hostnet-nginx-" + fixture.HostPlatform().Architecture} {
		recipe := server(base(v1.Config{}), program, "nginx", "-g", "daemon off;")
		recipe.Config.Env = append(slices.Clone(recipe.Config.Env), "PORT=12003")
		recipes[tools+name] = recipe
	}
	for _, name := range []string{"1:latest", "2:latest", "3:latest", "latest", "tag:test", "tag:all", "digest"} {
		recipes[tools+"test-image-"+name] = labelled(base(v1.Config{}), name)
	}
	for _, tag := range []string{"1", "2", "3"} {
		recipes[tools+"test-image-tags:"+tag] = labelled(base(v1.Config{}), "tags")
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(recipes)) {
		errs = append(errs, pushOne(r, name, recipes[name]))
	}
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	img, err := recipes[tools+"test-image-digest"].Build()
	if err != nil {
		return "", err
	}
	digest, err := img.Digest()
	return digest.Hex, err
}

func pushOne(r *fixture.Registry, name string, recipe fixture.Recipe) error {
	img, err := recipe.Build()
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	_, err = r.Push(name, img)
	return err
}

// shell returns what makes images of busybox. The suite has a shell run `ls` from its file, which it masks, and
// Debian's busybox runs an applet of that name itself: this one has none, and the file is another busybox. It has
// neither ipcs nor pgrep, which are this program.
func shell(program []byte) (func(v1.Config) fixture.Recipe, error) {
	recipe, err := fixture.BusyboxRecipe()
	if err != nil {
		return nil, err
	}
	var files []fixture.File
	for _, f := range recipe.Layers[0] {
		switch f.Name {
		case "bin/busybox":
			whole := f
			whole.Name = "bin/ls"
			files = append(files, whole)
			hidden := bytes.Replace(f.Body, []byte("\x00ls\x00lsmod\x00"), []byte("\x00lp\x00lsmod\x00"), 1)
			if bytes.Equal(hidden, f.Body) {
				return nil, errors.New("the applet ls was not found in the machine's busybox")
			}
			f.Body = hidden
		case "bin/ls":
			continue
		case "etc/passwd":
			f.Body = []byte(passwd)
		case "etc/group":
			f.Body = []byte(group)
		}
		files = append(files, f)
	}
	files = append(files, fixture.File{Name: "var/run", Type: tar.TypeSymlink, Link: "/run", Mode: 0o777},
		fixture.File{Name: "run/"},
		fixture.File{Name: "bin/ipcs", Mode: 0o755, Body: program},
		fixture.File{Name: "bin/pgrep", Type: tar.TypeLink, Link: "bin/ipcs", Mode: 0o755})
	return func(c v1.Config) fixture.Recipe {
		c.Cmd, c.Env = []string{"sh"}, []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		return fixture.Recipe{Config: c, Layers: [][]fixture.File{files}}
	}, nil
}

// server puts this program into an image as the server name.
func server(recipe fixture.Recipe, program []byte, name string, args ...string) fixture.Recipe {
	recipe.Layers = append(slices.Clone(recipe.Layers), []fixture.File{
		{Name: "usr/"}, {Name: "usr/sbin/"}, {Name: "usr/sbin/" + name, Mode: 0o755, Body: program},
	})
	recipe.Config.Cmd = append([]string{name}, args...)
	return recipe
}

// labelled makes an image unlike the others.
func labelled(recipe fixture.Recipe, name string) fixture.Recipe {
	recipe.Config.Labels = map[string]string{"name": name}
	return recipe
}

// own is this program, which is what the images run. They have no libraries.
func own() ([]byte, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return nil, errors.New("this program runs in images that have no libraries: build it with CGO_ENABLED=0")
	}
	return program, nil
}
