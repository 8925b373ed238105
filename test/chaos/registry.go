package chaos

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"berth/test/fixture"
	"berth/test/timeouts"
)

// imagesEach is how many images a client has for itself. They share all layers but one.
const imagesEach = 2

// registryFile is the registry's configuration, by which the folder of a run is known.
const registryFile = "registry.yml"

const pauseImage = registryAddr + "/pause:1"

// startRegistry starts Debian's registry and gives it an image for each client.
func (s *stage) startRegistry() error {
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		return fmt.Errorf("find the registry (Debian: docker-registry): %w", err)
	}
	config := filepath.Join(s.Dir, registryFile)
	text := fmt.Sprintf("version: 0.1\nlog: {level: warn}\nstorage:\n  filesystem: {rootdirectory: %s/registry}\n"+
		"http:\n  addr: %s\n", s.Dir, registryAddr)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	s.registry, err = startService(func() *exec.Cmd { return exec.Command(program, "serve", config) },
		filepath.Join(s.Dir, "registry.log"), func(string) {})
	if err != nil {
		return err
	}
	if err := awaitRegistry(); err != nil {
		return err
	}
	return s.push()
}

func awaitRegistry() error {
	deadline := time.Now().Add(timeouts.For(time.Minute))
	for {
		resp, err := http.Get("http://" + registryAddr + "/v2/")
		if err == nil {
			return resp.Body.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the registry does not answer: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// push makes the images: /webapp, and a layer that is its own.
func (s *stage) push() error {
	base, err := fixture.Web()
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(s.Seed, 0))
	for i := range s.Clients * imagesEach {
		img, err := withLayer(base, random)
		if err != nil {
			return err
		}
		ref := fmt.Sprintf("%s/app%d:v%d", registryAddr, i/imagesEach, i%imagesEach)
		if err := write(ref, img); err != nil {
			return err
		}
		s.images = append(s.images, ref)
	}
	pause, err := mutate.Config(base, v1.Config{Entrypoint: []string{"/webapp", "stubborn"}})
	if err != nil {
		return err
	}
	return write(pauseImage, pause)
}

// withLayer adds a layer of one to three MiB that compresses to half.
func withLayer(base v1.Image, random *rand.Rand) (v1.Image, error) {
	body := make([]byte, 1<<20+random.IntN(2<<20))
	for i := range body {
		body[i] = byte(random.IntN(16))
	}
	img, err := fixture.Recipe{Layers: [][]fixture.File{{{Name: "data", Body: body}}}}.Build()
	if err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(base, layers...)
}

func write(reference string, img v1.Image) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return fmt.Errorf("name the image: %w", err)
	}
	if err := remote.Write(ref, img); err != nil {
		return fmt.Errorf("push %s: %w", reference, err)
	}
	return nil
}
