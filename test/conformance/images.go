package conformance

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/test/fixture"
)

// hosts are the registries that the specs name. What is not in the registry of a run is nowhere.
var hosts = []string{"registry.k8s.io", "gcr.io"}

const (
	e2e         = "e2e-test-images/"
	privateRepo = "k8s-authenticated-test/"
)

var environment = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

// Push makes the stand-ins for the images that the specs name, and pushes them. It returns their names. Two tags are
// never one image: specs that change a tag look for it in the status of the container, and the daemon may give
// either.
func Push(r *fixture.Registry) (names []string, err error) {
	recipes, err := recipes()
	if err != nil {
		return nil, err
	}
	names = slices.Sorted(maps.Keys(recipes))
	for _, name := range names {
		recipe := recipes[name]
		recipe.Config.Labels = map[string]string{"name": name}
		if recipe.Config.Env == nil {
			recipe.Config.Env = environment
		}
		img, err := recipe.Build()
		if err != nil {
			return nil, fmt.Errorf("make %s: %w", name, err)
		}
		index, err := fixture.Index(img) // as the true ones are
		if err != nil {
			return nil, err
		}
		if _, err := r.PushIndex(name, index); err != nil {
			return nil, err
		}
	}
	return names, nil
}

func recipes() (map[string]fixture.Recipe, error) {
	applets, err := os.ReadFile(AppletsProgram())
	if err != nil {
		return nil, err
	}
	busybox, err := busyboxRecipe(applets)
	if err != nil {
		return nil, err
	}
	tools, err := fixture.DebianImage(fixture.DebianTools)
	if err != nil {
		return nil, err
	}
	debian := fixture.Recipe{Base: tools, Config: v1.Config{Cmd: []string{"/bin/sh"}}}
	pause := fixture.Recipe{
		Config: v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535", WorkingDir: "/"},
		Layers: [][]fixture.File{{{Name: "pause", Mode: 0o755, Body: applets}}},
	}
	all := map[string]fixture.Recipe{
		"pause:3.10": pause, "pause:3.10.2": pause,
		e2e + "nonroot:1.5":             with(busybox, func(c *v1.Config) { c.User = "1234" }),
		e2e + "perl:5.26":               debian,
		e2e + "ipc-utils:1.4":           debian,
		e2e + "glibc-dns-testing:2.0.0": debian,
	}
	for _, tag := range []string{"1.29-2", "1.36.1-1", "1.37.0-1"} {
		all[e2e+"busybox:"+tag] = busybox
	}
	for _, tag := range []string{"1.15-4", "1.27-0"} {
		all[e2e+"nginx:"+tag] = nginx(debian)
	}
	agnhost, err := agnhostRecipe(debian, applets, pause)
	for _, tag := range []string{e2e + "agnhost:2.55", e2e + "agnhost:2.63.0", privateRepo + "agnhost:2.6"} {
		all[tag] = agnhost
	}
	// This one is a volume: specs read its files, that of its system among them.
	all[e2e+"kitten:1.8"] = with(agnhost, func(c *v1.Config) { c.Cmd = []string{"test-webserver"} },
		[]fixture.File{{Name: "data.json", Body: []byte(`{"image": "kitten.jpg"}`)}})
	return all, errors.Join(err,
		programImage(all, e2e+"nonewprivs:1.4", busybox, fixture.File{Name: "usr/local/bin/nnp", Mode: 0o6755}),
		programImage(all, e2e+"sample-device-plugin:1.7", debian, fixture.File{Name: "sampledeviceplugin", Mode: 0o755}),
	)
}

// with is a recipe with another configuration.
func with(r fixture.Recipe, change func(*v1.Config), layers ...[]fixture.File) fixture.Recipe {
	change(&r.Config)
	r.Layers = append(slices.Clone(r.Layers), layers...)
	return r
}

func busyboxRecipe(applets []byte) (fixture.Recipe, error) {
	files, err := fixture.BusyboxLayer()
	if err != nil {
		return fixture.Recipe{}, err
	}
	files = append(files, fixture.File{Name: "bin/nmeter", Mode: 0o755, Body: applets}, fixture.File{Name: "run/"})
	return fixture.Recipe{Config: v1.Config{Cmd: []string{"sh"}}, Layers: [][]fixture.File{files}}, nil
}

// nginx is Debian's, which logs to the container's streams.
func nginx(debian fixture.Recipe) fixture.Recipe {
	return with(debian, func(c *v1.Config) {
		c.Cmd, c.StopSignal = []string{"nginx", "-g", "daemon off;"}, "SIGQUIT"
		c.ExposedPorts = map[string]struct{}{"80/tcp": {}}
	}, []fixture.File{
		{Name: "var/log/nginx/"},
		{Name: "var/log/nginx/access.log", Type: tar.TypeSymlink, Link: "/dev/stdout"},
		{Name: "var/log/nginx/error.log", Type: tar.TypeSymlink, Link: "/dev/stderr"},
	})
}

// programImage adds an image that has one of the built programs, and runs it.
func programImage(all map[string]fixture.Recipe, name string, base fixture.Recipe, file fixture.File) (err error) {
	file.Body, err = os.ReadFile(filepath.Join(ProgramsCache(), filepath.Base(file.Name)))
	all[name] = with(base, func(c *v1.Config) { c.Cmd = []string{"/" + file.Name} }, []fixture.File{file})
	return err
}

// agnhostRecipe is the image of many servers. The true one is on Alpine: specs look for that name, and call what
// busybox has there.
func agnhostRecipe(debian fixture.Recipe, applets []byte, pause fixture.Recipe) (fixture.Recipe, error) {
	program, err := os.ReadFile(filepath.Join(ProgramsCache(), "agnhost"))
	if err != nil {
		return fixture.Recipe{}, err
	}
	box, err := fixture.BusyboxLayer()
	if err != nil {
		return fixture.Recipe{}, err
	}
	_, cert, key, err := fixture.Certificate("localhost", net.IPv4(127, 0, 0, 1))
	if err != nil {
		return fixture.Recipe{}, err
	}
	files := []fixture.File{
		{Name: "localhost.crt", Body: cert},
		{Name: "localhost.key", Body: key},
		{Name: "uploads/"},
		{Name: "agnhost", Mode: 0o755, Body: program},
		{Name: "agnhost-2", Type: tar.TypeSymlink, Link: "agnhost"},
		{Name: "etc/os-release", Body: []byte("NAME=\"Alpine Linux\"\nVARIANT=\"Debian in its place\"\n")},
		{Name: "usr/local/bin/nmeter", Mode: 0o755, Body: applets},
		{Name: "usr/local/bin/nslookup", Type: tar.TypeSymlink, Link: "busybox"},
		{Name: "usr/local/bin/wget", Type: tar.TypeSymlink, Link: "busybox"},
	}
	for _, f := range box {
		if f.Name == "bin/busybox" {
			f.Name = "usr/local/bin/busybox"
			files = append(files, f)
		}
	}
	served, err := servedImage("pause", "testing", pause)
	if err != nil {
		return fixture.Recipe{}, err
	}
	return with(debian, func(c *v1.Config) {
		c.Entrypoint, c.Cmd = []string{"/agnhost"}, []string{"pause"}
		c.ExposedPorts = map[string]struct{}{"80/tcp": {}, "8080/tcp": {}, "8081/tcp": {}, "9376/tcp": {}, "5000/tcp": {}}
	}, append(files, served...)), nil
}

// servedImage are the files of an image as agnhost's registry serves it: content by digest, and a tag that names one.
func servedImage(name, tag string, recipe fixture.Recipe) ([]fixture.File, error) {
	img, err := recipe.Build()
	if err != nil {
		return nil, err
	}
	index, err := fixture.Index(img)
	if err != nil {
		return nil, err
	}
	digest, err := index.Digest()
	if err != nil {
		return nil, err
	}
	top := "var/registry/" + name + "/"
	files := []fixture.File{{Name: top + "manifests/" + tag, Body: []byte(digest.String() + "\n")}}
	put := func(kind string, content func() ([]byte, error)) {
		body, failed := content()
		sum, _, hashed := v1.SHA256(bytes.NewReader(body))
		err = errors.Join(err, failed, hashed)
		path := fmt.Sprintf("%s%s/sha256/%s/%s/data", top, kind, sum.Hex[:2], sum.Hex)
		files = append(files, fixture.File{Name: path, Body: body})
	}
	put("manifests", index.RawManifest)
	put("manifests", img.RawManifest)
	put("blobs", img.RawConfigFile)
	layers, failed := img.Layers()
	err = errors.Join(err, failed)
	for _, l := range layers {
		put("blobs", func() ([]byte, error) { return compressed(l) })
	}
	return files, err
}

func compressed(l v1.Layer) ([]byte, error) {
	r, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(r)
	return body, errors.Join(err, r.Close())
}
