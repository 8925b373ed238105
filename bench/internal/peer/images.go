package peer

import (
	"archive/tar"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"berth/test/fixture"
)

// Images are references to what the runtimes pull, in a registry on loopback that this process is.
type Images struct {
	Pod   string // a static busybox and a program that waits
	Pause string // for runtimes with a pause container: the same busybox, asleep
	Certs string // hosts.toml files that lead there
}

// ServeImages builds the images and serves them until the process ends. It unpacks the pod's image into rootfs too.
func ServeImages(certs, rootfs string) (Images, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return Images{}, err
	}
	quiet := log.New(io.Discard, "", 0)
	go func() { _ = http.Serve(listener, registry.New(registry.Logger(quiet))) }()
	addr := listener.Addr().String()
	i := Images{Pod: addr + "/pod:1", Pause: addr + "/pause:1", Certs: certs}

	recipe, err := fixture.BusyboxRecipe()
	if err != nil {
		return Images{}, err
	}
	if err := push(i.Pod, recipe); err != nil {
		return Images{}, err
	}
	if err := unpack(recipe, rootfs); err != nil {
		return Images{}, err
	}
	recipe.Layers = recipe.Layers[:1]
	recipe.Config = v1.Config{Entrypoint: []string{"/bin/busybox", "sleep", "2147483647"}}
	if err := push(i.Pause, recipe); err != nil {
		return Images{}, err
	}
	return i, WriteHosts(certs, addr)
}

func push(reference string, recipe fixture.Recipe) error {
	image, err := recipe.Build()
	if err != nil {
		return err
	}
	ref, err := name.ParseReference(reference)
	if err != nil {
		return fmt.Errorf("name the image: %w", err)
	}
	if err := remote.Write(ref, image); err != nil {
		return fmt.Errorf("push %s: %w", reference, err)
	}
	return nil
}

// WriteHosts tells the runtimes that the registry at addr speaks plain HTTP.
func WriteHosts(certs, addr string) error {
	dir := filepath.Join(certs, addr)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf("server = \"http://%[1]s\"\n[host.\"http://%[1]s\"]\ncapabilities = [\"pull\", \"resolve\"]\n",
		addr)
	return os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644)
}

// unpack writes what the recipe describes; it knows the kinds of file that a busybox image has.
func unpack(recipe fixture.Recipe, dir string) error {
	for _, layer := range recipe.Layers {
		for _, f := range layer {
			if err := write(f, filepath.Join(dir, f.Name)); err != nil {
				return fmt.Errorf("unpack %s: %w", f.Name, err)
			}
		}
	}
	return nil
}

func write(f fixture.File, path string) error {
	if f.Name[len(f.Name)-1] == '/' {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	switch f.Type {
	case tar.TypeSymlink:
		return os.Symlink(f.Link, path)
	case 0, tar.TypeReg:
		return os.WriteFile(path, f.Body, os.FileMode(f.Mode)|0o600)
	}
	return fmt.Errorf("a file of type %q is not expected here", f.Type)
}
